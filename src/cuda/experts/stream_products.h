#pragma once

// Products of a K tile of 256 weights of a block format. The tensor cores multiply the codes as they are, in f16; the
// products of a group of 16 or 32 are scaled.
//
//   sum_k weight_k x_k  =  sum_g scale_g (sum_k code'_k x_k) + first_factor sum_g first_g X_g
//                          + second_factor sum_g second_g X_g,      X_g = sum_k x_k
//
// over the groups g of the K tile and the k of each (formats/k_tile_codes.h). Codes are exact in f16, so only
// activations are rounded. Decoding a weight costs one instruction instead of almost three; in exchange, each group is
// scaled for each row of activations. The sums over X_g are matrix products too, 16 long, with X_g as the sum of two
// f16.

#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/experts/activation_records.h"

namespace thalweg::cu {

constexpr int kCodeMmaRows = 2;  // mma tiles of 16 weight rows per warp

// sums += weights[32, 256] x[256, 8 kUsed], in shared memory. rows[i]: the K tile of weight row 8 i + lane / 4;
// records: kRecordBytes per row of activations; bias_bytes: see k_tile_codes.h.
template <class Codes, int kUsed, int kTiles>
__device__ inline void multiply_codes(const std::uint8_t* const (&rows)[2 * kCodeMmaRows], const std::uint8_t* records,
                                      std::uint32_t bias_bytes, float (&sums)[kCodeMmaRows][kTiles][4]) {
  constexpr int kHalves = 32 / Codes::kGroup;  // groups in 32 weights
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int t = lane % 4;
  // Column lane / 4 of the first tile; tile n begins 8 n columns further.
  const std::uint8_t* record = records + lane / 4 * kRecordBytes + 16 * t;
  const Codes codes[2 * kCodeMmaRows] = {Codes(rows[0]), Codes(rows[1]), Codes(rows[2]), Codes(rows[3])};

  // sums += factor of the row times the product of `numbers` of the sub-blocks with the columns' X.
  const auto add_sums = [&](auto&& numbers, auto&& factor) {
#pragma unroll
    for (int m = 0; m < kCodeMmaRows; ++m) {
      std::uint32_t fragment[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) fragment[i] = numbers(codes[2 * m + i % 2], i / 2);
#pragma unroll
      for (int tile = 0; tile < kUsed; ++tile) {
        const uint4 x = *reinterpret_cast<const uint4*>(record + 8 * tile * kRecordBytes + 2 * kRecordValues);
        float products[4] = {};
        multiply_add<__half>(products, fragment, x.x, x.y);
        multiply_add<__half>(products, fragment, x.z, x.w);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[m][tile][i] = fmaf(factor(codes[2 * m + i / 2]), products[i], sums[m][tile][i]);
        }
      }
    }
  };
  if constexpr (Codes::kFirst) {
    add_sums([&](const Codes& row, int i) { return row.first(t, i); },
             [](const Codes& row) { return row.first_factor(); });
  }
  if constexpr (Codes::kSecond) {
    add_sums([&](const Codes& row, int i) { return row.second(t, i); },
             [](const Codes& row) { return row.second_factor(); });
  }

#pragma unroll
  for (int sub_block = 0; sub_block < 8; ++sub_block) {
    std::uint32_t weights[kCodeMmaRows][2][4];  // fragments of the first and of the last sixteen
    float scales[2 * kCodeMmaRows][kHalves];
#pragma unroll
    for (int row = 0; row < 2 * kCodeMmaRows; ++row) {
      std::uint32_t pairs[4];
      if constexpr (requires { codes[row].pairs(sub_block, t, pairs); }) {
        codes[row].pairs(sub_block, t, pairs);
      } else {
        bytes_to_pairs(codes[row].bytes(sub_block, t), bias_bytes, pairs);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[row / 2][half][row % 2] = pairs[2 * half];
        weights[row / 2][half][row % 2 + 2] = pairs[2 * half + 1];
        if (half < kHalves) scales[row][half] = codes[row].scale(sub_block, half, bias_bytes);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kUsed; ++tile) {
      const uint4 x = *reinterpret_cast<const uint4*>(record + 8 * tile * kRecordBytes + 64 * sub_block);
#pragma unroll
      for (int m = 0; m < kCodeMmaRows; ++m) {
        float products[kHalves][4] = {};
        multiply_add<__half>(products[0], weights[m][0], x.x, x.y);
        multiply_add<__half>(products[kHalves - 1], weights[m][1], x.z, x.w);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[m][tile][i] = fmaf(scales[2 * m + i / 2][half], products[half][i], sums[m][tile][i]);
          }
        }
      }
    }
  }
}

}  // namespace thalweg::cu
