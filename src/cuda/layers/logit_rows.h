#pragma once

// What kernels over rows of logits share. A row is cut into segments; a block has kRowThreads threads.

#include <cstdint>

#include "cuda/common/warp.h"

namespace thalweg::cu {

using U64 = unsigned long long;  // that atomics and shuffles take

constexpr int kRowThreads = 256;
constexpr int kRowWarps = kRowThreads / kWarpSize;
constexpr int kSegmentLoads = 8;  // of a thread
constexpr int kSegment = kRowThreads * kSegmentLoads;
// More segments than this find no room in shared memory, and sums of weights none in 64 bits.
constexpr int kMostSegments = 2048;
constexpr std::int64_t kMostLogits = std::int64_t{kMostSegments} * kSegment;

// ---- Order. A larger logit has a larger key, equal ones have the same, 0 is none's. Among all tokens of a row the
// likelier has the larger rank, of equal ones that of lower id.

constexpr std::uint32_t kMinusInfinityKey = 0x007FFFFFU;
constexpr U64 kNoNumber = ~U64{0};  // rank of NaN and +infinity: the largest, so that it is found

__device__ inline std::uint32_t key_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit == 0.0F ? 0.0F : logit);  // -0 is equal to 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float logit_of(std::uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7FFFFFFFU : ~key);
}
__device__ inline U64 rank_of(float logit, int token) {
  if (!(logit < __uint_as_float(0x7F800000U))) return kNoNumber;
  return static_cast<U64>(key_of(logit)) << 32 | ~static_cast<std::uint32_t>(token);
}
__device__ inline std::uint32_t key_of_rank(U64 rank) { return static_cast<std::uint32_t>(rank >> 32); }
__device__ inline int token_of_rank(U64 rank) { return static_cast<int>(~static_cast<std::uint32_t>(rank)); }
// Whether the softmax of a row with this largest rank exists.
__device__ inline bool has_probabilities(U64 largest) {
  return largest != kNoNumber && key_of_rank(largest) > kMinusInfinityKey;
}

// ---- Over the threads of a block, all of which call and get the result. They begin with a barrier, so that shared
// memory that was read before the call may be written after it.

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / kWarpSize; }

__device__ inline U64 block_max(U64 x) {
  __shared__ U64 warps[kRowWarps];
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const U64 other = __shfl_xor_sync(0xFFFFFFFFU, x, distance);
    x = other > x ? other : x;
  }
  __syncthreads();
  if (lane_index() == 0) warps[warp_index()] = x;
  __syncthreads();
  for (int warp = 0; warp < kRowWarps; ++warp) x = warps[warp] > x ? warps[warp] : x;
  return x;
}

// In an order that depends on nothing.
__device__ inline double block_sum(double x) {
  __shared__ double warps[kRowWarps];
  for (int distance = 1; distance < kWarpSize; distance *= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, distance);
  __syncthreads();
  if (lane_index() == 0) warps[warp_index()] = x;
  __syncthreads();
  x = 0.0;
  for (int warp = 0; warp < kRowWarps; ++warp) x += warps[warp];
  return x;
}

// Tokens, and the sum of their weights.
struct Tally {
  U64 mass;
  std::uint32_t count;

  __device__ Tally operator+(const Tally& other) const { return {mass + other.mass, count + other.count}; }
};

// The tally of the threads before this one, and of all.
__device__ inline Tally block_scan(const Tally& own, Tally& total) {
  __shared__ Tally warps[kRowWarps];
  Tally sum = own;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const Tally other{__shfl_up_sync(0xFFFFFFFFU, sum.mass, distance),
                      __shfl_up_sync(0xFFFFFFFFU, sum.count, distance)};
    if (lane_index() >= distance) sum = sum + other;
  }
  __syncthreads();
  if (lane_index() == kWarpSize - 1) warps[warp_index()] = sum;
  __syncthreads();
  Tally before{0, 0};
  total = {0, 0};
  for (int warp = 0; warp < kRowWarps; ++warp) {
    if (warp < warp_index()) before = before + warps[warp];
    total = total + warps[warp];
  }
  return {before.mass + sum.mass - own.mass, before.count + sum.count - own.count};
}

}  // namespace thalweg::cu
