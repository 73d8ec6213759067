#pragma once

// Products of a few rows of activations with an expert's weights on the tensor cores, bound by reading the weights:
// each is read once for all rows of a work item.
//
// Roles: all four warps are alike. A block multiplies one row tile of an expert's weights after the other; each warp 16
// or 32 of their rows, the left operand of mma.m16n8k16. Up to 8 kTiles rows of activations are the right operand.
// Shared memory: stages of raw blocks of the row tile and of activations; offsets and factors of the results.
// Pipeline: K tiles by cp.async, kStages - 1 ahead. What is multiplied depends on the format: codes (stream_products.h)
// or weights (stream_weights.h).

#include <type_traits>

#include "cuda/common/async_copy.h"
#include "cuda/common/pdl.h"
#include "cuda/common/warp.h"
#include "cuda/experts/experts.h"
#include "cuda/experts/formats/formats.h"
#include "cuda/experts/row_copies.h"
#include "cuda/experts/stream.h"
#include "cuda/experts/stream_products.h"
#include "cuda/experts/stream_weights.h"

namespace thalweg::cu {

constexpr int kStreamWarps = 4;

// kAligned: weight rows begin at multiples of 16 bytes.
template <DType kType, int kTiles, bool kAligned>
struct StreamTile {
  // Scaling products costs an instruction per weight and 32 rows of activations; scaling weights, two for any number.
  static constexpr bool kCodes = is_block_format(kType) && kTiles <= 2;
  static constexpr float kResultFactor = kCodes ? kCodesFactor<kType> : 1.0F;
  static constexpr int kMmaRows = kCodes ? kCodeMmaRows : 1;  // mma tiles of 16 weight rows per warp
  static constexpr int kWarpRows = 16 * kMmaRows;
  static constexpr int kRows = kStreamWarps * kWarpRows;                       // per row tile
  static constexpr int kTileK = is_block_format(kType) ? kRecordValues : 128;  // columns of a K tile
  using Rows = RowCopies<kType, kWarpRows, kTileK, kAligned>;
  static constexpr int kPitch = Rows::kPitch;

  static constexpr int kColumns = 8 * kTiles;                                     // rows of activations
  static constexpr int kColumnVectors = kCodes ? kRecordBytes / 16 : kTileK / 8;  // 16-byte vectors of a row per K tile
  static constexpr int kWeightBytes = kRows * kPitch;
  static constexpr int kStageBytes = kWeightBytes + kColumns * kColumnVectors * 16;
  // Blocks per multiprocessor: many small ones, so that few warps wait for each other.
  static constexpr int kBlocks = kCodes ? 3 : 4;
  static constexpr int kMostBytes = 227 * 1024 / kBlocks - 2048;
  static constexpr int kStages = 4 * kStageBytes <= kMostBytes ? 4 : (3 * kStageBytes <= kMostBytes ? 3 : 2);
  static constexpr int kSharedBytes = kStages * kStageBytes;

  // Byte offset of vector c of a row of activations in a stage.
  __device__ static std::uint32_t column_offset(int row, int c) {
    if constexpr (kCodes) return static_cast<std::uint32_t>(row * kRecordBytes + c * 16);
    return activation_vector<kTileK>(row, c);
  }
};

// The copies of a thread for each K tile: destinations stay, sources advance by a K tile.
template <class Tile>
struct StreamCopies {
  static constexpr int kThreads = kStreamWarps * kWarpSize;
  static constexpr int kColumnCopies = (Tile::kColumns * Tile::kColumnVectors + kThreads - 1) / kThreads;

  typename Tile::Rows weights;  // the warp's
  const std::uint16_t* activations;
  std::int32_t column_from[kColumnCopies];  // in vectors; -1: beyond the item's rows

  // Finds the rows of activations that the thread copies: row_of(pair), k_tiles K tiles each.
  template <class RowOf>
  __device__ __forceinline__ void find_columns(const ExpertItem& item, const std::int32_t* pairs, RowOf row_of,
                                               int k_tiles, int thread) {
#pragma unroll
    for (int i = 0; i < kColumnCopies; ++i) {
      const int vector = thread + i * kThreads;
      const int n = vector / Tile::kColumnVectors;
      column_from[i] = -1;
      if (n >= item.count || n >= Tile::kColumns) continue;
      column_from[i] = row_of(pairs[item.begin + n]) * k_tiles * Tile::kColumnVectors + vector % Tile::kColumnVectors;
    }
  }
  // Copies a K tile of the warp's rows from first_row on, and of the activations, to a stage.
  __device__ void copy(int first_row, int k_tile, bool last, std::uint8_t* stage, int warp, int lane) const {
    weights.copy(first_row, k_tile, last, shared_address(stage + Tile::kWarpRows * warp * Tile::kPitch), lane);
    const std::uint32_t columns = shared_address(stage + Tile::kWeightBytes);
#pragma unroll
    for (int i = 0; i < kColumnCopies; ++i) {
      if (column_from[i] < 0) break;
      const int vector = warp * kWarpSize + lane + i * kThreads;
      copy_16_bytes(columns + Tile::column_offset(vector / Tile::kColumnVectors, vector % Tile::kColumnVectors),
                    activations + static_cast<std::int64_t>(column_from[i] + k_tile * Tile::kColumnVectors) * 8);
    }
  }
};

// y = sums times factors plus bias: rows g + 8 i from first_row on, columns 2 t and 2 t + 1 of each tile, for lane 4 g
// + t.
template <int kMmaRows, int kTiles>
__device__ __forceinline__ void store_row_tile(const ExpertMatmul& p, void* y, const ExpertItem& item,
                                               const float (&sums)[kMmaRows][kTiles][4],
                                               const std::int64_t (&y_rows)[8 * kTiles],
                                               const float (&y_factors)[8 * kTiles], int first_row, int g, int t) {
  const int rows = p.n - first_row - g;  // left from the lane's first on
  float bias[2 * kMmaRows];
#pragma unroll
  for (int i = 0; i < 2 * kMmaRows; ++i) {
    bias[i] = p.bias != nullptr && 8 * i < rows ? p.bias[first_row + g + 8 * i] : 0.0F;
  }
  with_type(p.y.dtype, [&]<class Y>(Y) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int column = i / 2 * 8 + 2 * t + i % 2;
      if (column >= item.count) continue;
      Y* to = static_cast<Y*>(y) + y_rows[column] + first_row + g;
      const float factor = y_factors[column];
#pragma unroll
      for (int j = 0; j < 2 * kMmaRows; ++j) {
        if (8 * j < rows) to[8 * j] = from_f32<Y>(fmaf(sums[j / 2][i / 2][j % 2 * 2 + i % 2], factor, bias[j]));
      }
    }
  });
}

template <DType kType, int kTiles, bool kAligned>
__global__ void __launch_bounds__(kStreamWarps* kWarpSize, StreamTile<kType, kTiles, kAligned>::kBlocks)
    expert_stream_kernel(ExpertMatmul p, ExpertLists lists, StreamActivations x, int row_tiles, SecondProduct second) {
  using Tile = StreamTile<kType, kTiles, kAligned>;
  using Copies = StreamCopies<Tile>;
  constexpr int kMmaRows = Tile::kMmaRows;
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ std::int64_t y_rows[Tile::kColumns];  // in elements
  __shared__ float y_factors[Tile::kColumns];
  const int k_tiles = x.k_tiles;
  const std::uint8_t* const all_weights = blockIdx.y == 0 ? p.weights : second.weights;
  void* const y = blockIdx.y == 0 ? p.y.data : second.y;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
  pdl_wait();
  pdl_trigger();
  const int item_blocks = (p.n + row_tiles * Tile::kRows - 1) / (row_tiles * Tile::kRows);  // blocks per item
  const int item_index = static_cast<int>(blockIdx.x) / item_blocks;
  const ExpertItem item = lists.items[item_index];  // undefined beyond the last one
  if (item_index >= *lists.num_items) return;
  const int block_row = (static_cast<int>(blockIdx.x) - item_index * item_blocks) * row_tiles * Tile::kRows;
  const int warp_row = block_row + Tile::kWarpRows * warp;  // the warp's first row in the first row tile

  const auto row_of = [&](int pair) { return p.x_per_slot ? pair : pair / p.ids.slots; };  // of activations
  Copies copies;
  copies.activations = x.data;
  copies.weights.begin(all_weights + item.expert * p.expert_bytes, p.row_bytes, p.n, p.k, lane);
  copies.find_columns(item, lists.rows, row_of, k_tiles, thread);
  if (thread < item.count) {
    const int pair = lists.rows[item.begin + thread];
    const int token = pair / p.ids.slots;
    y_rows[thread] = p.y.offset(token, pair - token * p.ids.slots);
    y_factors[thread] = Tile::kResultFactor * (x.factors != nullptr ? x.factors[row_of(pair)] : 1.0F);
  }

  const int own_row_tiles = min(row_tiles, (p.n - block_row + Tile::kRows - 1) / Tile::kRows);
  const int steps = own_row_tiles * k_tiles;
  // The next copy.
  int next_row = warp_row;
  int next_k_tile = 0;
  int next_stage = 0;
  const auto copy_next = [&] {
    copies.copy(next_row, next_k_tile, next_k_tile == k_tiles - 1, shared + next_stage * Tile::kStageBytes, warp, lane);
    next_stage = next_stage + 1 < Tile::kStages ? next_stage + 1 : 0;
    if (++next_k_tile < k_tiles) return;
    next_k_tile = 0;
    next_row += Tile::kRows;
  };
  float sums[kMmaRows][kTiles][4] = {};
  // Multiplies by the first kUsed column tiles.
  const auto multiply_all = [&]<int kUsed>() {
    int row = warp_row;
    int k_tile = 0;
    int stage_index = 0;
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<Tile::kStages - 2>();
      __syncthreads();
      if (step + Tile::kStages - 1 < steps) copy_next();
      commit_copies();
      const std::uint8_t* stage = shared + stage_index * Tile::kStageBytes;
      stage_index = stage_index + 1 < Tile::kStages ? stage_index + 1 : 0;
      const std::uint8_t* rows[2 * kMmaRows];
#pragma unroll
      for (int i = 0; i < 2 * kMmaRows; ++i) {
        rows[i] = stage + (Tile::kWarpRows * warp + g + 8 * i) * Tile::kPitch +
                  copies.weights.misalignment(row + g + 8 * i, k_tile);
      }
      if constexpr (Tile::kCodes) {
        const auto zero = static_cast<std::uint32_t>((lane | p.k) >> 31);  // unknown to the compiler
        multiply_codes<typename CodesOf<kType, kAligned>::Type, kUsed>(rows, stage + Tile::kWeightBytes,
                                                                       kBiasBytes<kType> | zero, sums);
      } else {
        multiply_weights<kType, Tile::kTileK, kUsed>(rows[0], rows[1], stage + Tile::kWeightBytes, sums[0]);
      }
      if (++k_tile < k_tiles) continue;
      store_row_tile(p, y, item, sums, y_rows, y_factors, row, g, t);
      k_tile = 0;
      row += Tile::kRows;
#pragma unroll
      for (int i = 0; i < kMmaRows * kTiles * 4; ++i) sums[i / (4 * kTiles)][i / 4 % kTiles][i % 4] = 0.0F;
    }
  };
#pragma unroll 1
  for (int i = 0; i < Tile::kStages - 1; ++i) {
    if (i < steps) copy_next();
    commit_copies();
  }
  if constexpr (kTiles > 1) {
    if (item.count <= 4 * kTiles) return multiply_all.template operator()<kTiles / 2>();
  }
  multiply_all.template operator()<kTiles>();
}

template <DType kType, int kTiles, bool kAligned>
StreamKernel stream_kernel_for() {
  using Tile = StreamTile<kType, kTiles, kAligned>;
  return {expert_stream_kernel<kType, kTiles, kAligned>,
          Tile::kSharedBytes,
          Tile::kRows,
          Tile::kTileK,
          Tile::kCodes,
          Tile::kColumns};
}
// Formats whose K tiles are multiples of 16 bytes have no kernel for unaligned rows.
template <DType kType, int kTiles>
StreamKernel stream_kernel_of(bool aligned) {
  if (aligned) return stream_kernel_for<kType, kTiles, true>();
  if constexpr (StreamTile<kType, kTiles, true>::Rows::kStep < 16) return stream_kernel_for<kType, kTiles, false>();
  return {};
}

}  // namespace thalweg::cu
