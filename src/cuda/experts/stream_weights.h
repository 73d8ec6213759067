#pragma once

// Products of a K tile of weights that are converted to bf16: plain types, and block formats with many rows.
//
// The order of k within a K tile is free as long as both operands agree. Lane 4 g + t holds the t-th quarter of the K
// tile of weight rows g and g + 8, so that its weights are consecutive and no scale is decoded twice.

#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/experts/formats/formats.h"

namespace thalweg::cu {

// Byte offset of vector c of a row of activations: vectors that a quarter of a warp reads at once are in different
// banks.
template <int kTileK>
__device__ inline std::uint32_t activation_vector(int row, int c) {
  constexpr int kOfLane = kTileK / 32;  // vectors per lane
  const int t = c / kOfLane;
  const int swizzle = kOfLane == 8 ? 2 * t + (row & 1) : (t >> 1) + 2 * (row & 1);
  return static_cast<std::uint32_t>(row * (kTileK / 8) + (c ^ swizzle)) * 16;
}

// sums += weights[16, kTileK] x[kTileK, 8 kUsed], in shared memory. row0, row1: the K tile of weight rows lane / 4 and
// lane / 4 + 8; columns: rows of activations, at activation_vector().
template <DType kType, int kTileK, int kUsed, int kTiles>
__device__ inline void multiply_weights(const std::uint8_t* row0, const std::uint8_t* row1, const std::uint8_t* columns,
                                        float (&sums)[kTiles][4]) {
  constexpr int kSubBlocks = kTileK / 128;  // per lane
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int i = 0; i < kSubBlocks; ++i) {
    const int index = kSubBlocks * t + i;  // of the sub-block in the K tile
    const int block = kBlockWeights<kType> == 1    ? index * 32 * kBlockBytes<kType>
                      : kBlockWeights<kType> == 32 ? index * kBlockBytes<kType>
                                                   : 0;
    const int sub_block = kBlockWeights<kType> == 256 ? index : 0;
    const auto packed0 = PackedWeights<kType>::read(row0 + block, sub_block);
    const auto packed1 = PackedWeights<kType>::read(row1 + block, sub_block);
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
        const uint4 b = *reinterpret_cast<const uint4*>(columns + 8 * tile * kTileK * 2 +
                                                        activation_vector<kTileK>(g, 4 * index + j));
        multiply_add<__nv_bfloat16>(sums[tile], first, b.x, b.y);
        multiply_add<__nv_bfloat16>(sums[tile], second, b.z, b.w);
      }
    }
  }
}

}  // namespace thalweg::cu
