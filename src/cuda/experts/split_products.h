#pragma once

// Products of a K tile of 256 weights of a block format with bf16 activations as they are. The tensor cores multiply
// the codes in bf16, which holds 128 + code exactly for codes of at most 127; the products of a group of 16 or 32 are
// scaled.
//
//   sum_k weight_k x_k  =  sum_g scale_g (sum_k (128 + code_k) x_k) + (offset_g - 128 scale_g) X_g,   X_g = sum_k x_k
//
// over the groups g of the K tile and the k of each; X_g is a product of the tensor cores with ones. Nothing is rounded
// but the sums in f32. Signed codes of eight bits are converted instead: scale code_k.

#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/experts/formats/k_tile_codes.h"

namespace thalweg::cu {

constexpr int kSplitTileK = 256;
constexpr int kSplitMmaRows = 2;  // mma tiles of 16 weight rows per warp
// Bytes between rows of activations in shared memory: lanes that read 8 bytes of four rows access different banks.
constexpr int kSplitXPitch = 2 * kSplitTileK + 32;

// Four bytes as bf16, in order: plus 128, or less 128 if kWide.
template <bool kWide>
__device__ inline void bytes_to_bf16(std::uint32_t bytes, std::uint32_t bias_bytes, std::uint32_t& low,
                                     std::uint32_t& high) {
  if constexpr (kWide) {
    const auto number = [&](std::uint32_t i) {
      return __uint_as_float(__byte_perm(bytes, 0x4B000000U, 0x7440U | i)) - (8388608.0F + 128.0F);
    };
    low = pack<__nv_bfloat16>(number(0), number(1));
    high = pack<__nv_bfloat16>(number(2), number(3));
  } else {
    low = __byte_perm(bytes, bias_bytes, 0x6160U);
    high = __byte_perm(bytes, bias_bytes, 0x6362U);
  }
}

// sums += weights[32, 256] x[256, 8 kTiles], in shared memory. rows[i]: the K tile of weight row 8 i + lane / 4; x:
// rows of activations, every kSplitXPitch bytes; bias_bytes: kBiasBytes<kType>, unknown to the compiler.
template <DType kType, class Codes, int kTiles>
__device__ inline void multiply_small_codes(const std::uint8_t* const (&rows)[2 * kSplitMmaRows], const std::uint8_t* x,
                                            std::uint32_t bias_bytes, float (&sums)[kSplitMmaRows][kTiles][4]) {
  constexpr bool kWide = SmallCodes<kType>::kWide;
  constexpr int kHalves = 32 / Codes::kGroup;  // groups in 32 weights
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int t = lane % 4;
  const std::uint8_t* const own_x = x + lane / 4 * kSplitXPitch + 8 * t;
  const Codes codes[2 * kSplitMmaRows] = {Codes(rows[0]), Codes(rows[1]), Codes(rows[2]), Codes(rows[3])};
  constexpr std::uint32_t kOnes = 0x3F803F80U;
  const std::uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};

#pragma unroll
  for (int sub_block = 0; sub_block < 8; ++sub_block) {
    std::uint32_t weights[kSplitMmaRows][2][4];  // fragments of the first and of the last sixteen
    float scales[2 * kSplitMmaRows][kHalves];
    float offsets[2 * kSplitMmaRows][kHalves];
#pragma unroll
    for (int row = 0; row < 2 * kSplitMmaRows; ++row) {
      const uint2 bytes = codes[row].bytes(sub_block, t);
      std::uint32_t(&first)[4] = weights[row / 2][0];
      std::uint32_t(&last)[4] = weights[row / 2][1];
      bytes_to_bf16<kWide>(bytes.x, bias_bytes, first[row % 2], first[row % 2 + 2]);
      bytes_to_bf16<kWide>(bytes.y, bias_bytes, last[row % 2], last[row % 2 + 2]);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float scale = codes[row].scale(sub_block, half, bias_bytes);
        scales[row][half] = scale;
        if constexpr (kWide) {
          offsets[row][half] = 0.0F;  // still makes an infinity among the activations NaN
        } else {
          offsets[row][half] = fmaf(-128.0F, scale, codes[row].offset(sub_block, half, scale, bias_bytes));
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::uint8_t* const from = own_x + 8 * tile * kSplitXPitch + 64 * sub_block;
      const uint2 x_first = *reinterpret_cast<const uint2*>(from);
      const uint2 x_last = *reinterpret_cast<const uint2*>(from + 32);
      float x_sums[kHalves][4];
      multiply_bf16(x_sums[0], ones, x_first.x, x_first.y);
      if constexpr (kHalves == 2) {
        multiply_bf16(x_sums[1], ones, x_last.x, x_last.y);
      } else {
        multiply_add<__nv_bfloat16>(x_sums[0], ones, x_last.x, x_last.y);
      }
#pragma unroll
      for (int m = 0; m < kSplitMmaRows; ++m) {
        float products[kHalves][4];
        multiply_bf16(products[0], weights[m][0], x_first.x, x_first.y);
        if constexpr (kHalves == 2) {
          multiply_bf16(products[1], weights[m][1], x_last.x, x_last.y);
        } else {
          multiply_add<__nv_bfloat16>(products[0], weights[m][1], x_last.x, x_last.y);
        }
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& sum = sums[m][tile][i];
            sum = fmaf(scales[2 * m + i / 2][half], products[half][i], sum);
            sum = fmaf(offsets[2 * m + i / 2][half], x_sums[half][i % 2], sum);
          }
        }
      }
    }
  }
}

}  // namespace thalweg::cu
