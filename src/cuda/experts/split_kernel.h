#pragma once

// Products of a few rows of activations with one matrix in a block format: the warps of a block divide the columns, so
// that matrices of few rows keep the device busy too.
//
// Roles: all warps are alike. A block has 32 weight rows and 8 kTiles rows of activations; a warp, every n-th K tile of
// both (split_products.h).
// Shared memory: for each warp, stages of raw blocks and of activations in bf16; then the warps' sums.
// Pipeline: weights are prefetched to the L2 cache before the kernels ahead have ended. A warp copies a K tile, or two
// if there are stages for them, and waits for no other before the sums are added, in the order of the warps.

#include "cuda/common/async_copy.h"
#include "cuda/common/pdl.h"
#include "cuda/common/warp.h"
#include "cuda/experts/experts.h"
#include "cuda/experts/formats/formats.h"
#include "cuda/experts/row_copies.h"
#include "cuda/experts/row_products.h"
#include "cuda/experts/split.h"
#include "cuda/experts/split_products.h"

namespace thalweg::cu {

// kAligned: weight rows begin at multiples of 16 bytes.
template <DType kType, int kTiles, bool kAligned>
struct SplitTile {
  static constexpr int kRows = 16 * kSplitMmaRows;
  static constexpr int kColumns = 8 * kTiles;
  using Rows = RowCopies<kType, kRows, kSplitTileK, kAligned>;
  static constexpr int kWeightBytes = kRows * Rows::kPitch;
  static constexpr int kStageBytes = kWeightBytes + kColumns * kSplitXPitch;
  static constexpr int kMostWarps = kTiles <= 2 ? 16 : 8;
};

// Copies a K tile of `count` rows of activations from `first` on, and zeros for the rest, by a warp.
template <int kColumns>
__device__ inline void copy_activations(const ExpertMatmul& p, int first, int count, int k_tile, std::uint8_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int column = k_tile * kSplitTileK + 8 * lane;  // a row is 32 vectors of 8
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const bool inside = i < count;
    const auto* const row = static_cast<const std::uint16_t*>(p.x.data) + p.x.offset(first + (inside ? i : 0));
    copy_piece(shared_address(to + i * kSplitXPitch + 16 * lane), column < p.k ? row + column : row,
               inside ? 2 * (p.k - column) : 0);
  }
}

// The same for activations of any type and alignment, rounded to bf16.
template <int kColumns>
__device__ inline void convert_activations(const ExpertMatmul& p, int first, int count, int k_tile, std::uint8_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int column = k_tile * kSplitTileK + 8 * lane;
  with_type(p.x.dtype, [&]<class X>(X) {
#pragma unroll 4
    for (int i = 0; i < kColumns; ++i) {
      const X* const from = static_cast<const X*>(p.x.data) + p.x.offset(first + min(i, count - 1)) + column;
      float x[8] = {};
      if (i < count && p.x.fours && column + 8 <= p.k) {
        const float4 low = load_four(from);
        const float4 high = load_four(from + 4);
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
      } else if (i < count) {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = column + j < p.k ? to_f32(from[j]) : 0.0F;
      }
      *reinterpret_cast<uint4*>(to + i * kSplitXPitch + 16 * lane) = {
          pack<__nv_bfloat16>(x[0], x[1]), pack<__nv_bfloat16>(x[2], x[3]), pack<__nv_bfloat16>(x[4], x[5]),
          pack<__nv_bfloat16>(x[6], x[7])};
    }
  });
}

template <DType kType, int kTiles, bool kAligned>
__global__ void __launch_bounds__(SplitTile<kType, kTiles, kAligned>::kMostWarps* kWarpSize, 1)
    split_matmul_kernel(const __grid_constant__ ExpertMatmul p, const __grid_constant__ SplitShape shape) {
  using Tile = SplitTile<kType, kTiles, kAligned>;
  using Codes = typename SmallCodes<kType>::Type;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int warps = threads / kWarpSize;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int first_column = static_cast<int>(blockIdx.y) * Tile::kColumns;
  const int count = min(p.ids.pairs - first_column, Tile::kColumns);
  const int rows = min(p.n - first_row, Tile::kRows);
  std::uint8_t* const own = shared + warp * shape.stages * Tile::kStageBytes;
  p.order.begin();
  if (lane < rows && blockIdx.y == 0) {
    const std::uint8_t* const row = p.weights + (first_row + lane) * p.row_bytes;
    for (int k_tile = warp; k_tile < shape.k_tiles; k_tile += warps) {
      prefetch_to_l2(row + static_cast<std::int64_t>(k_tile) * Tile::Rows::kTileBytes, Tile::Rows::kTileBytes, 0, 1);
    }
  }
  typename Tile::Rows weights;
  weights.begin(p.weights, p.row_bytes, p.n, p.k, lane);
  p.order.wait();

  const auto copy = [&](int k_tile, std::uint8_t* stage) {
    if (k_tile < shape.k_tiles) {
      weights.copy(first_row, k_tile, k_tile == shape.k_tiles - 1, shared_address(stage), lane);
      if (shape.copies_x) {
        copy_activations<Tile::kColumns>(p, first_column, count, k_tile, stage + Tile::kWeightBytes);
      } else {
        convert_activations<Tile::kColumns>(p, first_column, count, k_tile, stage + Tile::kWeightBytes);
      }
    }
    commit_copies();
  };
  float sums[kSplitMmaRows][kTiles][4] = {};
  copy(warp, own);
  int stage = 0;
  for (int k_tile = warp; k_tile < shape.k_tiles; k_tile += warps) {
    if (shape.stages > 1) {
      copy(k_tile + warps, own + (stage ^ 1) * Tile::kStageBytes);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncwarp();
    const std::uint8_t* const at = own + stage * Tile::kStageBytes;
    const std::uint8_t* tile_rows[2 * kSplitMmaRows];
#pragma unroll
    for (int i = 0; i < 2 * kSplitMmaRows; ++i) {
      const int row = lane / 4 + 8 * i;
      tile_rows[i] = at + row * Tile::Rows::kPitch + weights.misalignment(first_row + row, k_tile);
    }
    const auto zero = static_cast<std::uint32_t>((lane | p.k) >> 31);  // unknown to the compiler
    multiply_small_codes<kType, Codes, kTiles>(tile_rows, at + Tile::kWeightBytes, kBiasBytes<kType> | zero, sums);
    __syncwarp();  // the stage has been read
    if (shape.stages > 1) {
      stage ^= 1;
    } else {
      copy(k_tile + warps, own);
    }
  }

  // The sums of all warps [warps][columns][rows + padding]: lanes of a pair of columns write to different banks.
  constexpr int kPitch = Tile::kRows + kSplitSumsPadding;
  auto* const all_sums = reinterpret_cast<float*>(shared);
  __syncthreads();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int m = 0; m < kSplitMmaRows; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * tile + 2 * (lane % 4) + i % 2;
        all_sums[(warp * Tile::kColumns + column) * kPitch + 16 * m + i / 2 * 8 + lane / 4] = sums[m][tile][i];
      }
    }
  }
  __syncthreads();
  for (int at = thread; at < count * Tile::kRows; at += threads) {
    const int column = at / Tile::kRows;
    const int row = at % Tile::kRows;
    if (row >= rows) continue;
    float sum = 0.0F;
    for (int i = 0; i < warps; ++i) sum += all_sums[(i * Tile::kColumns + column) * kPitch + row];
    store_result(p, p.y.offset(first_column + column) + first_row + row, first_row + row, sum);
  }
  p.order.end();
}

template <DType kType, int kTiles, bool kAligned>
SplitKernel split_kernel_for() {
  using Tile = SplitTile<kType, kTiles, kAligned>;
  return {split_matmul_kernel<kType, kTiles, kAligned>, Tile::kRows, Tile::kColumns, Tile::kMostWarps,
          Tile::kStageBytes};
}
// Formats whose K tiles are multiples of 16 bytes have no kernel for unaligned rows.
template <DType kType, int kTiles>
SplitKernel split_kernel_of(bool aligned) {
  if (aligned) return split_kernel_for<kType, kTiles, true>();
  if constexpr (SplitTile<kType, kTiles, true>::Rows::kStep < 16) return split_kernel_for<kType, kTiles, false>();
  return {};
}

}  // namespace thalweg::cu
