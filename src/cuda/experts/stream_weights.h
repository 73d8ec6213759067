#pragma once

// Sums of products of a K tile of weights that are made bf16 first: of plain types and of formats with codes of 8 bits.
//
// The order of k within a K tile is free as long as both operands agree: lane 4 g + t holds of weight rows g and g + 8
// the t-th quarter of the K tile, so that its weights are consecutive, as they are packed, and no scale is decoded
// twice.

#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/experts/formats/formats.h"

namespace thalweg::cu {

// Where piece c of a row of activations lies in shared memory: vectors that the lanes of a quarter of a warp read at
// the same time meet different banks.
template <int kTileK>
__device__ inline std::uint32_t activation_vector(int row, int c) {
  constexpr int kOfLane = kTileK / 32;  // vectors
  const int t = c / kOfLane;
  const int swizzle = kOfLane == 8 ? 2 * t + (row & 1) : (t >> 1) + 2 * (row & 1);
  return static_cast<std::uint32_t>(row * (kTileK / 8) + (c ^ swizzle)) * 16;
}

// sums += weights[16, kTileK] x[kTileK, 8 kUsed]. row0, row1: where the K tile of weight rows lane / 4 and lane / 4 + 8
// begins; columns: rows of activations, in vectors as above. Shared memory.
template <DType kType, int kTileK, int kUsed, int kTiles>
__device__ inline void multiply_weights(const std::uint8_t* row0, const std::uint8_t* row1, const std::uint8_t* columns,
                                        float (&sums)[kTiles][4]) {
  constexpr int kSubBlocks = kTileK / 128;  // of 32 weights, in a lane's quarter
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int i = 0; i < kSubBlocks; ++i) {
    const int index = kSubBlocks * t + i;  // of 32 weights in the K tile
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
