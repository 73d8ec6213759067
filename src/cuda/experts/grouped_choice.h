#pragma once

// What the kernels of moe_ffn's second launch (grouped.h) share: the choice of a token's experts, and sums over a
// block.

#include "cuda/experts/choose_experts.h"
#include "cuda/experts/grouped.h"

namespace thalweg::cu {

// Chooses the experts of a token, by a warp, and stores them and their weights; lane s returns the expert of slot s.
__device__ inline int choose_for_token(const GroupedChoice& p, int token) {
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

// The exclusive sum over the block's kWarps warps, and that of all.
template <int kWarps>
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

// Makes the items of an expert with `count` pairs from `begin` on.
__device__ inline void store_items(const GroupedChoice& p, int expert, int first_item, int begin, int count) {
  const int size = p.items.item_tokens;
  for (int i = 0; i * size < count; ++i) {
    p.items.items[first_item + i] = {expert, begin + i * size, min(size, count - i * size)};
  }
}

// Makes those of the shared expert, the first `count`, and states the number of all.
__device__ inline void store_shared_items(const GroupedChoice& p, int count, int all, int threads) {
  const int size = p.items.item_tokens;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    p.items.items[i] = {kSharedItem, i * size, min(size, p.tokens - i * size)};
  }
  if (threadIdx.x == 0) *p.items.count = all;
}

// In a cluster of blocks, on Hopper.
namespace sm90 {
void launch_grouped_choice(const GroupedChoice& choice, const DeviceProperties& device, cudaStream_t stream,
                           std::string_view operation);
}  // namespace sm90

}  // namespace thalweg::cu
