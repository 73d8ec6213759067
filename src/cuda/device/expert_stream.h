#pragma once

// Products of a few rows of activations with an expert's weights on the matrix units: bound by reading the weights,
// each once for all the rows of an item.
//
// A block takes strips of 64 weight rows of one expert, one after the other, a warp 16 of them, as the left operand (16
// x 16) of mma.m16n8k16; up to 8 kTiles rows of activations are the right one. Along K the block goes in slices. Raw
// blocks and activations come into shared memory by asynchronous copies, several slices ahead. The order of k within a
// slice is free as long as both operands agree: lane 4 g + t holds of weight rows g and g + 8 the t-th quarter of the
// slice, so that its weights are consecutive, as they are packed, and no scale is decoded twice.

#include "cuda/device/async_copy.h"
#include "cuda/device/experts.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/row_copies.h"
#include "cuda/device/warp.h"
#include "cuda/device/weights.h"

namespace thalweg::cu {

constexpr int kStreamWarps = 4;
constexpr int kStreamRows = 16 * kStreamWarps;  // weight rows of a block
// Blocks on a multiprocessor: many small ones, so that few warps wait for each other.
constexpr int kStreamBlocks = 4;

template <DType kType, int kTiles>
struct StreamTile {
  static constexpr int kSlice = is_block_format(kType) ? 256 : 128;  // weights of a row
  static constexpr int kSpans = kSlice / 128;                        // of 32 weights, in a lane's quarter
  using Rows = RowCopies<kType, 16, kSlice, true>;
  static constexpr bool kExact = Rows::kExact;
  static constexpr int kPitch = Rows::kPitch;

  static constexpr int kColumns = 8 * kTiles;  // rows of activations
  static constexpr int kActivationPieces = kSlice / 8;
  static constexpr int kWeightBytes = kStreamRows * kPitch;
  static constexpr int kStageBytes = kWeightBytes + kColumns * kSlice * 2;
  static constexpr int kMostBytes = 227 * 1024 / kStreamBlocks - 2048;
  static constexpr int kStages = 4 * kStageBytes <= kMostBytes ? 4 : (3 * kStageBytes <= kMostBytes ? 3 : 2);
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

// Where piece c of a row of activations lies in shared memory: pieces that the lanes of a quarter of a warp read at the
// same time meet different banks.
template <int kSlice>
__device__ inline std::uint32_t activation_piece(int row, int c) {
  constexpr int kOfLane = kSlice / 32;  // pieces
  const int t = c / kOfLane;
  const int swizzle = kOfLane == 8 ? 2 * t + (row & 1) : (t >> 1) + 2 * (row & 1);
  return static_cast<std::uint32_t>(row * (kSlice / 8) + (c ^ swizzle)) * 16;
}

// What a thread copies of every slice: the places do not change, all sources move on by a slice.
template <DType kType, int kTiles>
struct StreamCopies {
  using Tile = StreamTile<kType, kTiles>;
  static constexpr int kThreads = kStreamWarps * kWarpSize;
  static constexpr int kColumnCopies = (Tile::kColumns * Tile::kActivationPieces + kThreads - 1) / kThreads;

  typename Tile::Rows weights;  // of the warp
  const std::uint16_t* activations;
  std::int32_t column_from[kColumnCopies];  // in pieces of 16 bytes; -1: beyond the item's rows

  // One slice of 16 rows from first_row on, and of the activations, to a stage.
  __device__ void copy(int first_row, int slice, bool last, std::uint8_t* stage, int warp, int lane) const {
    weights.copy(first_row, slice, last, shared_address(stage + 16 * warp * Tile::kPitch), lane);
    const std::uint32_t columns = shared_address(stage + Tile::kWeightBytes);
#pragma unroll
    for (int i = 0; i < kColumnCopies; ++i) {
      if (column_from[i] < 0) break;
      const int piece = warp * kWarpSize + lane + i * kThreads;
      copy_16_bytes(
          columns + activation_piece<Tile::kSlice>(piece / Tile::kActivationPieces, piece % Tile::kActivationPieces),
          activations + static_cast<std::int64_t>(column_from[i] + slice * (Tile::kSlice / 8)) * 8);
    }
  }
};

// sums += the products of a slice, for the first kUsed tiles of rows.
template <DType kType, int kTiles, int kUsed>
__device__ inline void multiply_slice(const std::uint8_t* row0, const std::uint8_t* row1, const std::uint8_t* columns,
                                      float (&sums)[kTiles][4]) {
  using Tile = StreamTile<kType, kTiles>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int span = 0; span < Tile::kSpans; ++span) {
    const int place = Tile::kSpans * t + span;  // of 32 weights in the slice
    const int block = kBlockWeights<kType> == 1    ? place * 32 * kBlockBytes<kType>
                      : kBlockWeights<kType> == 32 ? place * kBlockBytes<kType>
                                                   : 0;
    const int part = kBlockWeights<kType> == 256 ? place : 0;
    const auto packed0 = PackedWeights<kType>::read(row0 + block, part);
    const auto packed1 = PackedWeights<kType>::read(row1 + block, part);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t w0[4];
      std::uint32_t w1[4];
      packed0.eight(j, w0);
      packed1.eight(j, w1);
      const std::uint32_t first[4] = {w0[0], w1[0], w0[1], w1[1]};
      const std::uint32_t second[4] = {w0[2], w1[2], w0[3], w1[3]};
#pragma unroll
      for (int tile = 0; tile < kUsed; ++tile) {
        // Rows 8 apart have the same swizzle.
        const uint4 b = *reinterpret_cast<const uint4*>(columns + 8 * tile * Tile::kSlice * 2 +
                                                        activation_piece<Tile::kSlice>(g, 4 * place + j));
        multiply_add<__nv_bfloat16>(sums[tile], first, b.x, b.y);
        multiply_add<__nv_bfloat16>(sums[tile], second, b.z, b.w);
      }
    }
  }
}

template <DType kType, int kTiles>
__global__ void __launch_bounds__(kStreamWarps* kWarpSize, kStreamBlocks)
    expert_stream_kernel(ExpertMatmul p, ExpertLists lists, const std::uint16_t* activations, int padded_k,
                         int strips) {
  using Tile = StreamTile<kType, kTiles>;
  using Copies = StreamCopies<kType, kTiles>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ std::int64_t y_rows[Tile::kColumns];  // offsets
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
  wait_for_previous_kernel();
  allow_next_kernel();
  const int row_tiles = (p.n + strips * kStreamRows - 1) / (strips * kStreamRows);  // of an item
  const int item_index = static_cast<int>(blockIdx.x) / row_tiles;
  const ExpertItem item = lists.items[item_index];  // anything, beyond the last one
  if (item_index >= *lists.num_items) return;
  // The warp's rows in the block's first strip of kStreamRows.
  const int warp_row = (static_cast<int>(blockIdx.x) - item_index * row_tiles) * strips * kStreamRows + 16 * warp;

  Copies copies;
  copies.activations = activations;
  copies.weights.begin(p.weights + item.expert * p.expert_bytes, p.row_bytes, p.n, p.k, lane);
#pragma unroll
  for (int i = 0; i < Copies::kColumnCopies; ++i) {
    const int piece = thread + i * Copies::kThreads;
    const int n = piece / Tile::kActivationPieces;
    copies.column_from[i] = -1;
    if (n >= item.count || n >= Tile::kColumns) continue;
    const int pair = lists.rows[item.begin + n];
    const int row = p.x_per_slot ? pair : pair / p.ids.slots;
    copies.column_from[i] = row * (padded_k / 8) + piece % Tile::kActivationPieces;
  }
  if (thread < item.count) {
    const int pair = lists.rows[item.begin + thread];
    const int token = pair / p.ids.slots;
    y_rows[thread] = p.y.offset(token, pair - token * p.ids.slots);
  }

  const int slices = padded_k / Tile::kSlice;
  const int own_strips = min(strips, (p.n - (warp_row - 16 * warp) + kStreamRows - 1) / kStreamRows);
  const int steps = own_strips * slices;
  // What is copied next.
  int next_row = warp_row;
  int next_slice = 0;
  int next_stage = 0;
  const auto copy_next = [&] {
    copies.copy(next_row, next_slice, next_slice == slices - 1, shared + next_stage * Tile::kStageBytes, warp, lane);
    next_stage = next_stage + 1 < Tile::kStages ? next_stage + 1 : 0;
    if (++next_slice < slices) return;
    next_slice = 0;
    next_row += kStreamRows;
  };
  float sums[kTiles][4] = {};
  const auto write = [&](int first_row) {
    with_type(p.y.dtype, [&]<class Y>(Y) {
      Y* y = static_cast<Y*>(p.y.data);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + g + i / 2 * 8;
        if (row >= p.n) continue;
        const float bias = p.bias != nullptr ? p.bias[row] : 0.0F;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const int column = 8 * tile + 2 * t + i % 2;
          if (column < item.count) y[y_rows[column] + row] = from_f32<Y>(sums[tile][i] + bias);
        }
      }
    });
  };
  const auto multiply_all = [&]<int kUsed>() {
    int row = warp_row;
    int slice = 0;
    int stage_index = 0;
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<Tile::kStages - 2>();
      __syncthreads();
      if (step + Tile::kStages - 1 < steps) copy_next();
      commit_copies();
      const std::uint8_t* stage = shared + stage_index * Tile::kStageBytes;
      stage_index = stage_index + 1 < Tile::kStages ? stage_index + 1 : 0;
      const std::uint8_t* row0 = stage + (16 * warp + g) * Tile::kPitch;
      const std::uint8_t* row1 = row0 + 8 * Tile::kPitch;
      row0 += copies.weights.off(row + g, slice);
      row1 += copies.weights.off(row + g + 8, slice);
      multiply_slice<kType, kTiles, kUsed>(row0, row1, stage + Tile::kWeightBytes, sums);
      if (++slice < slices) continue;
      write(row);
      slice = 0;
      row += kStreamRows;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][i] = 0.0F;
      }
    }
  };
#pragma unroll 1
  for (int i = 0; i < Tile::kStages - 1; ++i) {
    if (i < steps) copy_next();
    commit_copies();
  }
  if (item.count <= 4 * kTiles) {
    multiply_all.template operator()<kTiles / 2>();
  } else {
    multiply_all.template operator()<kTiles>();
  }
}

}  // namespace thalweg::cu
