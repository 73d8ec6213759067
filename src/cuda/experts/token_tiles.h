#pragma once

// Tiles of the experts' rows, and the staged layout of the tiled matmuls' activations.

#include <cstdint>

namespace thalweg::cu {

// Rows of one expert that are multiplied together: rows[begin .. begin + count).
struct TokenTile {
  std::int32_t expert;
  std::int32_t begin;
  std::int32_t count;
  std::int32_t unused;
};
constexpr int kTileTokens = 256;  // the most
// Tiles of an expert have kTileTokens rows and a remainder; these classes sort tiles by cost.
constexpr int kTileClasses[] = {256, 192, 128, 96, 64, 32};
__host__ __device__ constexpr int tile_class(int count) {
  return count > 192 ? 0 : count > 128 ? 1 : count > 96 ? 2 : count > 64 ? 3 : count > 32 ? 4 : 5;
}
constexpr int kTileClassCount = static_cast<int>(sizeof(kTileClasses) / sizeof(int));

// Activations are staged as rows of whole runs of 128 columns, in the order in which a lane of wgmma's left operand
// holds 32 consecutive weights: within a run, 16 s + 8 j + 2 q + i is k = 32 q + 4 s + 2 j + i (s < 8, j < 2, q < 4, i
// < 2).
constexpr int kStagedRun = 128;
constexpr std::int64_t staged_columns(std::int64_t k) { return (k + kStagedRun - 1) / kStagedRun * kStagedRun; }
__host__ __device__ constexpr int staged_index(int k) {
  return k / kStagedRun * kStagedRun + k % 32 / 4 * 16 + k % 4 / 2 * 8 + k % kStagedRun / 32 * 2 + k % 2;
}

// Computes the exclusive prefix sum of counts[kThreads * kTileClassCount] in place; returns the total to every thread.
template <int kThreads>
__device__ int prefix_sum(int* counts) {
  __shared__ int warp_totals[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  int* const own = counts + thread * kTileClassCount;
  int sum = 0;
  for (int i = 0; i < kTileClassCount; ++i) {
    const int count = own[i];
    own[i] = sum;
    sum += count;
  }
  int up_to = sum;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int before = __shfl_up_sync(0xFFFFFFFFU, up_to, distance);
    if (thread % 32 >= distance) up_to += before;
  }
  if (thread % 32 == 31) warp_totals[thread / 32] = up_to;
  __syncthreads();
  int first = up_to - sum;
  int total = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp < thread / 32) first += warp_totals[warp];
    total += warp_totals[warp];
  }
  for (int i = 0; i < kTileClassCount; ++i) own[i] += first;
  __syncthreads();
  return total;
}

// Divides the rows of each expert into tiles, sorted by class, then by expert, by a block of kThreads. `counts` are
// kTileClassCount * kThreads of shared memory.
template <int kThreads>
__device__ void cut_tiles(const std::int32_t* offsets, int experts, TokenTile* tiles, std::int32_t* tile_count,
                          int* counts) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // offsets are written, and counts free
  const int each = (experts + kThreads - 1) / kThreads;
  const int first = min(experts, thread * each);
  const int last = min(experts, first + each);
  for (int i = 0; i < kTileClassCount; ++i) counts[i * kThreads + thread] = 0;
  for (int e = first; e < last; ++e) {
    const int rows = offsets[e + 1] - offsets[e];
    counts[thread] += rows / kTileTokens;
    if (rows % kTileTokens != 0) ++counts[tile_class(rows % kTileTokens) * kThreads + thread];
  }
  __syncthreads();
  const int total = prefix_sum<kThreads>(counts);
  if (thread == 0) *tile_count = total;
  for (int e = first; e < last; ++e) {
    int begin = offsets[e];
    for (int left = offsets[e + 1] - begin; left > 0;) {
      const int count = min(left, kTileTokens);
      const int index = counts[tile_class(count) * kThreads + thread]++;
      *reinterpret_cast<int4*>(tiles + index) = {e, begin, count, 0};
      begin += count;
      left -= count;
    }
  }
}

}  // namespace thalweg::cu
