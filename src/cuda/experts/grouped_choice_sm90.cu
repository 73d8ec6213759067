// The second launch of moe_ffn's `grouped` (grouped.h) on Hopper.
//
// Roles: the blocks of a cluster choose the experts of some tokens each, a warp for each token, and learn from each
//   other's counts where their pairs belong. Every block adds all counts up; the first one makes the items.
// Shared memory: counts and begins [E]; ids and ranks of the block's pairs.

#include <algorithm>

#include "cuda/common/cluster.h"
#include "cuda/common/pdl.h"
#include "cuda/experts/grouped_choice.h"

namespace thalweg::cu::sm90 {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarpSize;
static_assert(kThreads >= kMostGroupedExperts);
constexpr int kMostBlocks = 8;
constexpr int kBlockTokens = 4;  // while there are blocks

__global__ void __launch_bounds__(kThreads, 1) grouped_choice_kernel(const __grid_constant__ GroupedChoice p) {
  extern __shared__ int memory[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const auto blocks = static_cast<int>(gridDim.x);
  const auto rank = static_cast<int>(cluster_rank());
  const int experts = min(p.experts, p.here.count);
  const int first = p.tokens * rank / blocks;
  const int last = p.tokens * (rank + 1) / blocks;
  int* const counts = memory;
  int* const begins = counts + experts;
  int* const ids = begins + experts;
  int* const ranks = ids + (p.tokens + blocks - 1) / blocks * p.slots;
  if (thread < experts) counts[thread] = 0;
  __syncthreads();
  pdl_wait();
  pdl_trigger();
  for (int token = first + thread / kWarpSize; token < last; token += kWarps) {
    const int id = choose_for_token(p, token);
    if (lane < p.slots) {
      ids[(token - first) * p.slots + lane] = id;
      ranks[(token - first) * p.slots + lane] = id >= 0 ? atomicAdd(&counts[id], 1) : 0;
    }
  }
  cluster_arrive();
  cluster_wait();  // all counts are complete

  int count = 0;
  int before_block = 0;
  if (thread < experts) {
    for (int r = 0; r < blocks; ++r) {
      const int theirs = load_from_block(counts + thread, static_cast<unsigned>(r));
      if (r < rank) before_block += theirs;
      count += theirs;
    }
  }
  const int size = p.items.item_tokens;
  int total;
  const int before = exclusive_sum<kWarps>(count | (count + size - 1) / size << 16, total);
  const int begin = before & 0xFFFF;
  if (thread < experts) begins[thread] = begin + before_block;
  if (rank == 0) {
    const int shared_items = p.shared ? (p.tokens + size - 1) / size : 0;
    if (thread < experts) store_items(p, thread, shared_items + (before >> 16), begin, count);
    store_shared_items(p, shared_items, shared_items + (total >> 16), kThreads);
  }
  __syncthreads();
  for (int pair = thread; pair < (last - first) * p.slots; pair += kThreads) {
    if (ids[pair] >= 0) p.items.pairs[begins[ids[pair]] + ranks[pair]] = first * p.slots + pair;
  }
  cluster_arrive_relaxed();
  cluster_wait();  // no block reads another one's counts any more
}

}  // namespace

void launch_grouped_choice(const GroupedChoice& choice, const DeviceProperties& device, cudaStream_t stream,
                           std::string_view operation) {
  const int blocks = std::clamp((choice.tokens + kBlockTokens - 1) / kBlockTokens, 1, kMostBlocks);
  const int block_tokens = (choice.tokens + blocks - 1) / blocks;
  const auto bytes = static_cast<std::size_t>(4 * (2 * choice.experts + 2 * block_tokens * choice.slots));
  const dim3 cluster(static_cast<unsigned>(blocks));
  pdl_launch(grouped_choice_kernel, cluster, cluster, dim3(kThreads), bytes, device, stream, operation, choice);
}

}  // namespace thalweg::cu::sm90
