#pragma once

// Sums of products of a K tile of 256 weights of a block format: the matrix units multiply the codes as they are, in
// f16, and what is scaled are the products of a group of 16 or 32.
//
//   sum_k weight_k x_k  =  sum_g scale_g (sum_k code'_k x_k) + first_factor sum_g first_g X_g
//                          + second_factor sum_g second_g X_g,      X_g = sum_k x_k
//
// bias_bytes the groups g of the K tile and the k of each (k_tile_codes.h). Codes are exact in f16, so the activations
// are all that is rounded. A weight costs an instruction to decode instead of almost three; each group costs a scaling
// for each of the rows of activations instead. The last sums are products of matrices too, 16 long, with X in two f16.

#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/experts/activation_records.h"

namespace thalweg::cu {

constexpr int kCodeMmaRows = 2;  // of 16 weight rows, of a warp

// sums += weights[32, 256] x[256, 8 kUsed]. rows[i]: where the K tile of weight row 8 i + lane / 4 begins; records:
// kRecordBytes for each row of activations. Shared memory. bias_bytes: as of k_tile_codes.h.
template <class Codes, int kUsed, int kTiles>
__device__ inline void multiply_codes(const std::uint8_t* const (&rows)[2 * kCodeMmaRows], const std::uint8_t* records,
                                      std::uint32_t bias_bytes, float (&sums)[kCodeMmaRows][kTiles][4]) {
  constexpr int kHalves = 32 / Codes::kGroup;  // groups in 32 weights
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int t = lane % 4;
  // Column lane / 4 of the first tile; that of tile n is 8 n further.
  const std::uint8_t* record = records + lane / 4 * kRecordBytes + 16 * t;
  const Codes codes[2 * kCodeMmaRows] = {Codes(rows[0]), Codes(rows[1]), Codes(rows[2]), Codes(rows[3])};

  // sums += the columns' sums, by what `numbers` are of the parts, by `factors` of the rows.
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
    std::uint32_t weights[kCodeMmaRows][2][4];  // fragments, of the first and the last sixteen
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
