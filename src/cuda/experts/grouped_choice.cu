// The second launch of moe_ffn's `grouped` (grouped.h).
//
// Roles: one block chooses the experts, a warp for each token, and makes the items.
// Shared memory: counts [E]; ids and ranks of pairs [T S].

#include "cuda/common/pdl.h"
#include "cuda/experts/grouped_choice.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 32;
constexpr int kThreads = kWarps * kWarpSize;

// Chooses the experts of all tokens and makes the items. The order of an expert's pairs is that in which warps arrive:
// nothing depends on it, since each is multiplied by itself.
__device__ void make_items(const GroupedChoice& p, int* memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int experts = min(p.experts, p.here.count);
  const int tokens = p.tokens;
  int* const counts = memory;
  int* const ids = counts + experts;
  int* const ranks = ids + tokens * p.slots;
  for (int e = thread; e < experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int token = warp; token < tokens; token += kWarps) {
    const int id = choose_for_token(p, token);
    if (lane < p.slots) {
      ids[token * p.slots + lane] = id;
      ranks[token * p.slots + lane] = id >= 0 ? atomicAdd(&counts[id], 1) : 0;
    }
  }
  __syncthreads();
  // Pairs in the lower half, items in the upper one.
  const int size = p.items.item_tokens;
  const int count = thread < experts ? counts[thread] : 0;
  int total;
  const int before = exclusive_sum<kWarps>(count | (count + size - 1) / size << 16, total);
  const int shared_items = p.shared ? (tokens + size - 1) / size : 0;
  const int begin = before & 0xFFFF;
  if (thread < experts) store_items(p, thread, shared_items + (before >> 16), begin, count);
  store_shared_items(p, shared_items, shared_items + (total >> 16), kThreads);
  if (thread < experts) counts[thread] = begin;
  __syncthreads();
  for (int pair = thread; pair < tokens * p.slots; pair += kThreads) {
    if (ids[pair] >= 0) p.items.pairs[counts[ids[pair]] + ranks[pair]] = pair;
  }
}

__global__ void __launch_bounds__(kThreads, 1) grouped_choice_kernel(const __grid_constant__ GroupedChoice p) {
  extern __shared__ int memory[];
  pdl_wait();
  pdl_trigger();
  make_items(p, memory);
}

}  // namespace

void launch_grouped_choice(const GroupedChoice& choice, const DeviceProperties& device, cudaStream_t stream,
                           std::string_view operation) {
  if (device.clusters_of_8 > 0) return sm90::launch_grouped_choice(choice, device, stream, operation);
  const auto bytes = static_cast<std::size_t>(4 * (choice.experts + 2 * choice.tokens * choice.slots));
  pdl_launch(grouped_choice_kernel, dim3(1), kThreads, bytes, device, stream, operation, choice);
}

}  // namespace thalweg::cu
