#pragma once

// Products of a few rows of activations with an expert's weights on the matrix units: bound by reading the weights,
// each once for all the rows of an item.
//
// A block takes 128 weight rows of one expert, a warp 16 of them, as the left operand (16 x 16) of mma.m16n8k16; up to
// 8 kTiles rows of activations are the right one. Along K the block goes in slices. Raw blocks and activations come
// into shared memory by asynchronous copies, several slices ahead. The order of k within a slice is free as long as
// both operands agree: lane 4 g + t holds of weight rows g and g + 8 the t-th quarter of the slice, so that its weights
// are consecutive, as they are packed, and no scale is decoded twice.

#include "cuda/device/async_copy.h"
#include "cuda/device/experts.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/warp.h"
#include "cuda/device/weights.h"

namespace thalweg::cu {

constexpr int kStreamWarps = 8;
constexpr int kStreamRows = 16 * kStreamWarps;  // weight rows of a block

template <DType kType, int kTiles>
struct StreamTile {
  static constexpr int kSlice = is_block_format(kType) ? 256 : 128;  // weights of a row
  static constexpr int kSpans = kSlice / 128;                        // of 32 weights, in a lane's quarter
  static constexpr int kSliceBytes = kSlice / kBlockWeights<kType> * kBlockBytes<kType>;
  // Whether slices begin at multiples of 16 bytes, if rows do; else the copies take what surrounds them too.
  static constexpr bool kExact = kSliceBytes % 16 == 0;
  static constexpr int kPieces =  // of 16 bytes, of a row
      kExact ? kSliceBytes / 16 : (kSliceBytes + 31 - PackedWeights<kType>::kAlign) / 16;
  // Odd multiples of 16 bytes: rows then begin in different banks.
  static constexpr int kPitch = 16 * (kPieces | 1);
  static constexpr int kColumns = 8 * kTiles;  // rows of activations
  static constexpr int kActivationPieces = kSlice / 8;
  static constexpr int kWeightBytes = kStreamRows * kPitch;
  static constexpr int kStageBytes = kWeightBytes + kColumns * kSlice * 2;
  static constexpr int kStages = 4 * kStageBytes <= 108 * 1024 ? 4 : (3 * kStageBytes <= 108 * 1024 ? 3 : 2);
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

template <DType kType, int kTiles>
__global__ void __launch_bounds__(kStreamWarps* kWarpSize, 2)
    expert_stream_kernel(ExpertMatmul p, ExpertLists lists, const std::uint16_t* activations, int padded_k) {
  using Tile = StreamTile<kType, kTiles>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ std::int32_t x_rows[Tile::kColumns];  // of the copied activations
  __shared__ std::int64_t y_rows[Tile::kColumns];  // offsets
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
  wait_for_previous_kernel();
  allow_next_kernel();
  const int row_tiles = (p.n + kStreamRows - 1) / kStreamRows;
  const int item_index = static_cast<int>(blockIdx.x) / row_tiles;
  if (item_index >= *lists.num_items) return;
  const ExpertItem item = lists.items[item_index];
  if (thread < Tile::kColumns && thread < item.count) {
    const int pair = lists.rows[item.begin + thread];
    const int token = pair / p.ids.slots;
    x_rows[thread] = p.x_per_slot ? pair : token;
    y_rows[thread] = p.y.offset(token, pair - token * p.ids.slots);
  }
  __syncthreads();

  const int first_row = (static_cast<int>(blockIdx.x) - item_index * row_tiles) * kStreamRows + 16 * warp;
  const std::uint8_t* weights = p.weights + item.expert * p.expert_bytes + first_row * p.row_bytes;
  const int most_row = p.n - 1 - first_row;  // rows beyond are read from there, and not written
  const int row_length = p.k / kBlockWeights<kType> * kBlockBytes<kType>;
  const int slices = padded_k / Tile::kSlice;
  const auto row_offset = [&](int r) { return static_cast<std::int64_t>(min(r, most_row)) * p.row_bytes; };

  const auto copy_slice = [&](int slice) {
    std::uint8_t* stage = shared + slice % Tile::kStages * Tile::kStageBytes;
    const std::uint32_t rows = shared_address(stage + 16 * warp * Tile::kPitch);
    const int from = slice * Tile::kSliceBytes;
    if (most_row >= 0) {
#pragma unroll
      for (int i = 0; i < (16 * Tile::kPieces + kWarpSize - 1) / kWarpSize; ++i) {
        const int piece = lane + i * kWarpSize;
        const int r = piece / Tile::kPieces;
        const int c = 16 * (piece - r * Tile::kPieces);
        if (16 * Tile::kPieces % kWarpSize != 0 && r >= 16) break;
        const std::uint8_t* row = weights + row_offset(r);
        int at = from + c;
        if constexpr (!Tile::kExact) at -= static_cast<int>(reinterpret_cast<std::uintptr_t>(row + from) & 15);
        copy_piece(rows + static_cast<std::uint32_t>(r * Tile::kPitch + c), row + at, row_length - at);
      }
    }
    const std::uint32_t columns = shared_address(stage + Tile::kWeightBytes);
    constexpr int kAll = Tile::kColumns * Tile::kActivationPieces;
#pragma unroll
    for (int i = 0; i < (kAll + kStreamWarps * kWarpSize - 1) / (kStreamWarps * kWarpSize); ++i) {
      const int piece = thread + i * kStreamWarps * kWarpSize;
      const int n = piece / Tile::kActivationPieces;
      const int c = piece % Tile::kActivationPieces;
      if (n >= item.count || n >= Tile::kColumns) break;
      const std::uint16_t* from_x = activations + static_cast<std::int64_t>(x_rows[n]) * padded_k;
      copy_16_bytes(columns + activation_piece<Tile::kSlice>(n, c), from_x + slice * Tile::kSlice + 8 * c, true);
    }
  };

  float sums[kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < Tile::kStages - 1; ++i) {
    if (i < slices) copy_slice(i);
    commit_copies();
  }
  for (int slice = 0; slice < slices; ++slice) {
    wait_for_copies<Tile::kStages - 2>();
    __syncthreads();
    if (slice + Tile::kStages - 1 < slices) copy_slice(slice + Tile::kStages - 1);
    commit_copies();

    const std::uint8_t* stage = shared + slice % Tile::kStages * Tile::kStageBytes;
    const std::uint8_t* row0 = stage + (16 * warp + g) * Tile::kPitch;
    const std::uint8_t* row1 = row0 + 8 * Tile::kPitch;
    if constexpr (!Tile::kExact) {
      const std::uint8_t* from = weights + static_cast<std::int64_t>(slice) * Tile::kSliceBytes;
      row0 += reinterpret_cast<std::uintptr_t>(from + row_offset(g)) & 15;
      row1 += reinterpret_cast<std::uintptr_t>(from + row_offset(g + 8)) & 15;
    }
    const std::uint8_t* columns = stage + Tile::kWeightBytes;
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
        for (int tile = 0; tile < kTiles; ++tile) {
          if (8 * tile >= item.count) break;
          const uint4 b =
              *reinterpret_cast<const uint4*>(columns + activation_piece<Tile::kSlice>(8 * tile + g, 4 * place + j));
          multiply_add<__nv_bfloat16>(sums[tile], first, b.x, b.y);
          multiply_add<__nv_bfloat16>(sums[tile], second, b.z, b.w);
        }
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * tile + 2 * t + i % 2;
      const int row = first_row + g + i / 2 * 8;
      if (column < item.count && row < p.n) store_result(p, y_rows[column] + row, row, sums[tile][i]);
    }
  }
}

}  // namespace thalweg::cu
