#pragma once

// Products of a K tile of 256 weights of 16 rows with one row of activations in fixed point (fixed_records.h, in
// FixedOrder::kEights), as bytes on the tensor cores; the arithmetic is that of byte_products.h. There two of the eight
// columns of an mma belong to a row of activations; here all eight belong to one: those of four groups of codes, each
// with zeros for the other three. So each lane gets the sums of groups of its own, and scales no others.

#include "cuda/experts/byte_products.h"

namespace thalweg::cu {

// A lane's column of the activations for the j-th pair of sub-blocks: high or low of one group, zeros elsewhere. Kept
// from K tile to K tile, so that the zeros are written once.
struct RowByteColumns {
  uint2 first[4] = {};
  uint2 second[4] = {};
};

// Loads from shared memory or leaves what is there; without a branch, and without a copy in local memory.
__device__ inline void load_if(bool condition, std::uint32_t shared, uint2& to) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.shared.v2.u32 {%0, %1}, [%3];}"
               : "+r"(to.x), "+r"(to.y)
               : "r"(static_cast<int>(condition)), "r"(shared));
}

// The groups whose sums an mma's column has. With groups of 32, column 2 i + (high or low) of first and second sums is
// of sub-blocks first(i) and second(i); with groups of 16, of half i % 2 of first(j) or, from i = 2 on, second(j), for
// each j a sum of its own.
template <class Codes>
struct RowByteGroups {
  static constexpr bool kHalves = Codes::kGroup == 16;
  static constexpr int kSums = kHalves ? 4 : 2;

  // Reads the lane's columns of a record, by lane 4 g + t.
  __device__ static void read(const std::uint8_t* x, int g, int t, RowByteColumns& columns) {
    const std::uint32_t own = shared_address(x + g % 2 * 32 + 8 * t);
    const int i = g / 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool own_half = i % 2 == t / 2;
      load_if(kHalves ? i < 2 && own_half : i == j, own + 64 * Codes::first(j), columns.first[j]);
      load_if(kHalves ? i >= 2 && own_half : i == j, own + 64 * Codes::second(j), columns.second[j]);
    }
  }
  // Adds the products of the j-th pair of sub-blocks, of whose two rows the lane has `bytes`.
  __device__ static void add(int j, const uint2 (&first)[2], const uint2 (&second)[2], const RowByteColumns& columns,
                             std::int32_t (&sums)[kSums][4]) {
    const uint2 a = columns.first[j];
    const uint2 b = columns.second[j];
    add_bytes_32<Codes::kSigned>(sums[kHalves ? j : 0], first[0].x, first[1].x, first[0].y, first[1].y, a.x, a.y);
    add_bytes_32<Codes::kSigned>(sums[kHalves ? j : 1], second[0].x, second[1].x, second[0].y, second[1].y, b.x, b.y);
  }
  // The scale of the lane's group of a sum.
  __device__ static auto scale(const Codes& codes, int sum, int t) {
    if constexpr (kHalves) {
      return codes.scale(t < 2 ? Codes::first(sum) : Codes::second(sum), t % 2);
    } else {
      return codes.scale(sum == 0 ? Codes::first(t) : Codes::second(t), 0);
    }
  }
};

// sums += weights[16, 256] x[256]: a lane holds a quarter of the sums of rows lane / 4 and lane / 4 + 8, to be added
// over lane % 4. upper, lower: the K tiles of these two rows; x: the K tile's record.
template <DType kType>
__device__ __forceinline__ void multiply_row_bytes(const std::uint8_t* upper, const std::uint8_t* lower,
                                                   const std::uint8_t* x, RowByteColumns& columns, float (&sums)[2]) {
  using Codes = ByteCodes<kType>;
  using Groups = RowByteGroups<Codes>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int t = lane % 4;
  const Codes codes[2] = {Codes(upper), Codes(lower)};
  Groups::read(x, lane / 4, t, columns);
  std::int32_t whole[Groups::kSums][4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint2 first[2];
    uint2 second[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) codes[row].row_pair(j, t, first[row], second[row]);
    Groups::add(j, first, second, columns, whole);
  }

  const float x_scale = *reinterpret_cast<const float*>(x + kFixedScaleAt);
  if constexpr (Codes::kSigned) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0.0F;
#pragma unroll
      for (int n = 0; n < Groups::kSums; ++n) {
        const auto product = static_cast<float>(128 * whole[n][2 * i] + whole[n][2 * i + 1]);
        sum = fmaf(Groups::scale(codes[i], n, t), product, sum);
      }
      sums[i] = fmaf(x_scale, sum, sums[i]);
    }
  } else {
    float products[4];  // the same in all columns
    multiply_numbers(codes, *reinterpret_cast<const uint4*>(x + kFixedSumsAt + 16 * t), t, products);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::int32_t high = 0;
      std::int32_t low = 0;
#pragma unroll
      for (int n = 0; n < Groups::kSums; ++n) {
        // The codes of second(j) are kSpread times as large.
        const std::int32_t scale = Groups::scale(codes[i], n, t) * (n == 0 ? Codes::kSpread : 1);
        high += scale * whole[n][2 * i];
        low += scale * whole[n][2 * i + 1];
      }
      const float d = codes[i].d() * (1.0F / Codes::kSpread);
      const float product = d * fmaf(128.0F, static_cast<float>(high), static_cast<float>(low));
      const float offset = t == 0 ? codes[i].factor() * kFixedSumUnit * products[2 * i] : 0.0F;
      sums[i] = fmaf(x_scale, product + offset, sums[i]);
    }
  }
  static_assert(Codes::kSpread == 1 || !Groups::kHalves);
}

// The sums over lane % 4.
__device__ inline void sum_quarters(float (&sums)[2]) {
#pragma unroll
  for (float& sum : sums) {
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
  }
}

}  // namespace thalweg::cu
