// The second launch of moe_ffn's `grouped` (grouped.h).
//
// Roles: one block chooses the experts, a warp for each token, and makes the items.
// Shared memory: counts [E]; ids and ranks of pairs [T S].

#include "cuda/common/pdl.h"
#include "cuda/experts/choose_experts.h"
#include "cuda/experts/grouped.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 32;
constexpr int kThreads = kWarps * kWarpSize;

// Chooses the experts of a token, by a warp, and stores them and their weights; lane s returns the expert of slot s.
__device__ int choose(const GroupedChoice& p, int token) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float* const logits = p.logits + token * p.experts;
  float sum = 0.0F;
  float* const total = p.renormalize ? nullptr : &sum;
  const ChosenExpert chosen = choose_of<kMostGroupedExperts>(logits, p.experts, p.slots, total);
  const float largest = __shfl_sync(0xFFFFFFFFU, chosen.logit, 0);
  const float own = lane < p.slots ? expf(chosen.logit - largest) : 0.0F;
  if (p.renormalize) sum = warp_sum(own);
  const int id = p.here.index_of(chosen.id);
  if (lane < p.slots) {
    p.weights[token * p.slots + lane] = own / sum;
    p.ids[token * p.slots + lane] = id;
  }
  return id;
}

// The exclusive sum over the block's threads, and that of all.
__device__ int exclusive_sum(int value, int& total) {
  __shared__ int warp_totals[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  int up_to = value;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int before = __shfl_up_sync(0xFFFFFFFFU, up_to, distance);
    if (lane >= distance) up_to += before;
  }
  if (lane == kWarpSize - 1) warp_totals[warp] = up_to;
  __syncthreads();
  int before = up_to - value;
  total = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += warp_totals[i];
    total += warp_totals[i];
  }
  return before;
}

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
    const int id = choose(p, token);
    if (lane < p.slots) {
      ids[token * p.slots + lane] = id;
      ranks[token * p.slots + lane] = id >= 0 ? atomicAdd(&counts[id], 1) : 0;
    }
  }
  __syncthreads();
  // Pairs in the lower half, items in the upper one.
  const int size = p.items.item_tokens;
  const int count = thread < experts ? counts[thread] : 0;
  const int own_items = (count + size - 1) / size;
  int total;
  const int before = exclusive_sum(count | own_items << 16, total);
  const int shared_items = p.shared ? (tokens + size - 1) / size : 0;
  const int begin = before & 0xFFFF;
  for (int i = 0; i < own_items; ++i) {
    p.items.items[shared_items + (before >> 16) + i] = {thread, begin + i * size, min(size, count - i * size)};
  }
  for (int i = thread; i < shared_items; i += kThreads) {
    p.items.items[i] = {kSharedItem, i * size, min(size, tokens - i * size)};
  }
  if (thread == 0) *p.items.count = shared_items + (total >> 16);
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
  const auto bytes = static_cast<std::size_t>(4 * (choice.experts + 2 * choice.tokens * choice.slots));
  pdl_launch(grouped_choice_kernel, dim3(1), kThreads, bytes, device, stream, operation, choice);
}

}  // namespace thalweg::cu
