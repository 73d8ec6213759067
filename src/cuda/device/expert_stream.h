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

// What a thread copies of every slice: the places do not change, all sources move on by a slice.
template <DType kType, int kTiles>
struct StreamCopies {
  using Tile = StreamTile<kType, kTiles>;
  static constexpr int kThreads = kStreamWarps * kWarpSize;
  static constexpr int kWeightCopies = (16 * Tile::kPieces + kWarpSize - 1) / kWarpSize;  // of a lane
  static constexpr int kColumnCopies = (Tile::kColumns * Tile::kActivationPieces + kThreads - 1) / kThreads;

  const std::uint8_t* weights;  // the warp's first row
  std::int32_t weight_from[kWeightCopies];
  const std::uint16_t* column_from[kColumnCopies];  // null: beyond the item's rows
  int row_length;                                   // bytes

  __device__ static int weight_row(int i, int lane) { return (lane + i * kWarpSize) / Tile::kPieces; }
  __device__ static int weight_to(int i, int lane) {
    const int piece = lane + i * kWarpSize;
    return Tile::kPitch == 16 * Tile::kPieces ? 16 * piece : 16 * piece + 16 * (piece / Tile::kPieces);
  }

  // One slice to a stage. Only the last one may end beyond the rows' ends.
  __device__ void copy(int slice, bool last, std::uint8_t* stage, int warp, int lane) const {
    const std::uint32_t rows = shared_address(stage + 16 * warp * Tile::kPitch);
    const std::uint8_t* from = weights + static_cast<std::int64_t>(slice) * Tile::kSliceBytes;
    const auto source = [&](int i) {
      const std::uint8_t* at = from + weight_from[i];
      return Tile::kExact ? at : at - (reinterpret_cast<std::uintptr_t>(at) & 15);
    };
    const bool cut = last && !(Tile::kExact && (slice + 1) * Tile::kSliceBytes <= row_length);
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      if (16 * Tile::kPieces % kWarpSize != 0 && weight_row(i, lane) >= 16) break;
      int valid = 16;
      if (cut) {
        const int c = (lane + i * kWarpSize) % Tile::kPieces * 16;
        const auto off = static_cast<int>(reinterpret_cast<std::uintptr_t>(from + weight_from[i]) & 15);
        valid = row_length - slice * Tile::kSliceBytes - c + (Tile::kExact ? 0 : off);
      }
      copy_piece(rows + static_cast<std::uint32_t>(weight_to(i, lane)), source(i), valid);
    }
    const std::uint32_t columns = shared_address(stage + Tile::kWeightBytes);
#pragma unroll
    for (int i = 0; i < kColumnCopies; ++i) {
      if (column_from[i] == nullptr) break;
      const int piece = warp * kWarpSize + lane + i * kThreads;
      copy_16_bytes(
          columns + activation_piece<Tile::kSlice>(piece / Tile::kActivationPieces, piece % Tile::kActivationPieces),
          column_from[i] + slice * Tile::kSlice, true);
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
__global__ void __launch_bounds__(kStreamWarps* kWarpSize, 2)
    expert_stream_kernel(ExpertMatmul p, ExpertLists lists, const std::uint16_t* activations, int padded_k) {
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
  const int row_tiles = (p.n + kStreamRows - 1) / kStreamRows;
  const int item_index = static_cast<int>(blockIdx.x) / row_tiles;
  if (item_index >= *lists.num_items) return;
  const ExpertItem item = lists.items[item_index];
  const int first_row = (static_cast<int>(blockIdx.x) - item_index * row_tiles) * kStreamRows + 16 * warp;
  // Rows beyond the last are read from there, and not written.
  const auto row_offset = [&](int r) {
    return static_cast<std::int64_t>(min(first_row + r, p.n - 1) - first_row) * p.row_bytes;
  };

  Copies copies;
  copies.weights = p.weights + item.expert * p.expert_bytes + first_row * p.row_bytes;
  copies.row_length = p.k / kBlockWeights<kType> * kBlockBytes<kType>;
#pragma unroll
  for (int i = 0; i < Copies::kWeightCopies; ++i) {
    const int c = (lane + i * kWarpSize) % Tile::kPieces * 16;
    copies.weight_from[i] = static_cast<std::int32_t>(row_offset(Copies::weight_row(i, lane))) + c;
  }
#pragma unroll
  for (int i = 0; i < Copies::kColumnCopies; ++i) {
    const int piece = thread + i * Copies::kThreads;
    const int n = piece / Tile::kActivationPieces;
    copies.column_from[i] = nullptr;
    if (n >= item.count || n >= Tile::kColumns) continue;
    const int pair = lists.rows[item.begin + n];
    const int row = p.x_per_slot ? pair : pair / p.ids.slots;
    copies.column_from[i] =
        activations + static_cast<std::int64_t>(row) * padded_k + piece % Tile::kActivationPieces * 8;
  }
  if (thread < item.count) {
    const int pair = lists.rows[item.begin + thread];
    const int token = pair / p.ids.slots;
    y_rows[thread] = p.y.offset(token, pair - token * p.ids.slots);
  }

  const int slices = padded_k / Tile::kSlice;
  float sums[kTiles][4] = {};
  const auto multiply_all = [&]<int kUsed>() {
    for (int slice = 0; slice < slices; ++slice) {
      wait_for_copies<Tile::kStages - 2>();
      __syncthreads();
      const int next = slice + Tile::kStages - 1;
      if (next < slices) {
        copies.copy(next, next == slices - 1, shared + next % Tile::kStages * Tile::kStageBytes, warp, lane);
      }
      commit_copies();
      const std::uint8_t* stage = shared + slice % Tile::kStages * Tile::kStageBytes;
      const std::uint8_t* row0 = stage + (16 * warp + g) * Tile::kPitch;
      const std::uint8_t* row1 = row0 + 8 * Tile::kPitch;
      if constexpr (!Tile::kExact) {
        const std::uint8_t* from = copies.weights + static_cast<std::int64_t>(slice) * Tile::kSliceBytes;
        row0 += reinterpret_cast<std::uintptr_t>(from + row_offset(g)) & 15;
        row1 += reinterpret_cast<std::uintptr_t>(from + row_offset(g + 8)) & 15;
      }
      multiply_slice<kType, kTiles, kUsed>(row0, row1, stage + Tile::kWeightBytes, sums);
    }
  };
#pragma unroll 1
  for (int i = 0; i < Tile::kStages - 1; ++i) {
    if (i < slices) copies.copy(i, i == slices - 1, shared + i * Tile::kStageBytes, warp, lane);
    commit_copies();
  }
  if (item.count <= 4 * kTiles) {
    multiply_all.template operator()<kTiles / 2>();
  } else {
    multiply_all.template operator()<kTiles>();
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
