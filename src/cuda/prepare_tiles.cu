// What the tiled matmuls need beforehand, in one launch: the first block cuts the experts' rows into tiles, the others
// stage the activations.

#include <algorithm>

#include "cuda/device/elements.h"
#include "cuda/device/launch_order.h"
#include "cuda/tiled_matmul.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;
constexpr int kClasses = static_cast<int>(sizeof(kTileClasses) / sizeof(int));

// The exclusive prefix sum of counts[kThreads * kClasses] in place; returns the total to every thread.
__device__ int prefix_sum(int* counts) {
  __shared__ int warp_totals[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  int* const own = counts + thread * kClasses;
  int sum = 0;
  for (int i = 0; i < kClasses; ++i) {
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
  for (int i = 0; i < kClasses; ++i) own[i] += first;
  __syncthreads();
  return total;
}

// Tiles in the order of their classes, within a class by expert.
__device__ void cut_tiles(const PrepareTiles& args) {
  __shared__ int counts[kClasses * kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int each = (args.experts + kThreads - 1) / kThreads;
  const int first = min(args.experts, thread * each);
  const int last = min(args.experts, first + each);
  for (int i = 0; i < kClasses; ++i) counts[i * kThreads + thread] = 0;
  for (int e = first; e < last; ++e) {
    const int rows = args.expert_offsets[e + 1] - args.expert_offsets[e];
    counts[thread] += rows / kTileTokens;
    if (rows % kTileTokens != 0) ++counts[tile_class(rows % kTileTokens) * kThreads + thread];
  }
  __syncthreads();
  const int total = prefix_sum(counts);
  if (thread == 0) *args.tile_count = total;
  for (int e = first; e < last; ++e) {
    int begin = args.expert_offsets[e];
    for (int left = args.expert_offsets[e + 1] - begin; left > 0;) {
      const int count = min(left, kTileTokens);
      const int place = counts[tile_class(count) * kThreads + thread]++;
      *reinterpret_cast<int4*>(args.tiles + place) = {e, begin, count, 0};
      begin += count;
      left -= count;
    }
  }
}

// Eight staged elements a thread: pairs of four runs of 32.
template <class T>
__device__ void stage(const PrepareTiles& args, std::int64_t block) {
  const int run_pieces = kStagedRun / 8;
  const int columns = (args.k + kStagedRun - 1) / kStagedRun * kStagedRun;
  const int pieces = columns / 8;
  const std::int64_t piece = block * kThreads + threadIdx.x;
  const std::int64_t row = piece / pieces;
  if (row >= args.rows) return;
  const int place = static_cast<int>(piece % pieces);
  const T* from =
      static_cast<const T*>(args.x) + row / args.inner * args.outer_stride + row % args.inner * args.inner_stride;
  const int first = place / run_pieces * kStagedRun + 2 * (place % run_pieces);
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int k = first + i / 2 * 32 + i % 2;
    values[i] = k < args.k ? to_f32(from[k]) : 0.0F;
  }
  const auto pair = [&](int i) {
    return static_cast<std::uint32_t>(from_f32<Bf16>(values[i]).bits) |
           static_cast<std::uint32_t>(from_f32<Bf16>(values[i + 1]).bits) << 16;
  };
  *reinterpret_cast<uint4*>(args.staged + row * columns + place * 8) = {pair(0), pair(2), pair(4), pair(6)};
}

__global__ void __launch_bounds__(kThreads) prepare_tiles(const __grid_constant__ PrepareTiles args) {
  wait_for_launch_order();
  const int plans = args.expert_offsets != nullptr ? 1 : 0;
  if (blockIdx.x < plans) {
    cut_tiles(args);
    return;
  }
  with_type(args.x_dtype, [&]<class T>(T) { stage<T>(args, static_cast<std::int64_t>(blockIdx.x) - plans); });
}

}  // namespace

void launch_prepare_tiles(const PrepareTiles& args, const DeviceProperties& device, cudaStream_t stream,
                          std::string_view operation) {
  const std::int64_t pieces = args.x != nullptr ? args.rows * staged_columns(args.k) / 8 : 0;
  const std::int64_t blocks = (pieces + kThreads - 1) / kThreads + (args.expert_offsets != nullptr ? 1 : 0);
  if (blocks == 0) return;
  launch_early(prepare_tiles, dim3(static_cast<unsigned>(blocks)), kThreads, 0, device, stream, operation, args);
}

}  // namespace thalweg::cu
