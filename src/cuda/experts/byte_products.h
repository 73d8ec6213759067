#pragma once

// Products of a K tile of 256 weights with activations in fixed point (fixed_records.h). The tensor cores multiply the
// codes as bytes; scales that are integers multiply the sums of a group of 16 or 32 as integers.
//
//   sum_k weight_k x_k = x_scale (d sum_g scale_g (sum_k code_k (128 high_k + low_k)) + factor sum_g number_g X_g)
//
// over the groups g of the K tile and the k of each, X_g = sum_k (128 high_k + low_k). Nothing is rounded before the
// sums of a K tile, which are f32. Of the eight columns of an mma, two belong to a row of activations: high and low.
//
// ByteCodes<kType> reads one weight row's K tile, which begins at an address of shared memory that is a multiple of 16
// or, for formats with kShifted, of 2:
//
//   pair(j, t, a, b)   words of codes 4 t .. 4 t + 3 and 16 + 4 t .. of sub-blocks first(j) and second(j), j < 4
//   row_pair(j, t, a, b)  the same of codes 8 t .. 8 t + 7
//   scale(s, half)     the integer scale of the half-th 16 weights of sub-block s
//   number(t, i)       of both halves of sub-block 2 t + i as two f16
//   d(), factor()
//
// kSpread: codes of second(j) are 16 times as large. kSigned: bytes are signed, scale() a float, no number().

#include "cuda/common/byte_mma.h"
#include "cuda/common/mma.h"
#include "cuda/experts/fixed_records.h"
#include "cuda/experts/formats/formats.h"

namespace thalweg::cu {

template <DType kType>
struct ByteCodes;

// The eight bytes from 8 t on.
__device__ inline uint2 read_eight(const std::uint8_t* from, int t) {
  return *reinterpret_cast<const uint2*>(from + 8 * t);
}

template <DType kType>
constexpr bool kHasByteCodes =
    kType == DType::kQ4_K || kType == DType::kQ5_K || kType == DType::kQ6_K || kType == DType::kQ8_0;

struct SuperBlockByteCodes {
  static constexpr int kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr bool kShifted = false;
  const std::uint8_t* tile;
  std::uint32_t head;
  SixBitScales six;

  __device__ explicit SuperBlockByteCodes(const std::uint8_t* at)
      : SuperBlockByteCodes(at, *reinterpret_cast<const uint4*>(at)) {}
  __device__ static constexpr int first(int j) { return 2 * j; }
  __device__ static constexpr int second(int j) { return 2 * j + 1; }
  __device__ int scale(int sub_block, int) const {
    const std::uint32_t four = sub_block < 4 ? six.scales[0] : six.scales[1];
    return static_cast<int>(__byte_perm(four, 0, 0x4440U | static_cast<std::uint32_t>(sub_block % 4)));
  }
  __device__ std::uint32_t number(int t, int i) const {
    return add_halves(SixBitScales::pair(six.minima, t, i), -1024.0F);
  }
  __device__ float d() const { return low_f16(head); }
  __device__ float factor() const { return -high_f16(head); }

 private:
  __device__ SuperBlockByteCodes(const std::uint8_t* at, uint4 words)
      : tile(at), head(words.x), six({words.x, words.y, words.z, words.w}) {}
};

template <>
struct ByteCodes<DType::kQ4_K> : SuperBlockByteCodes {
  static constexpr int kSpread = 16;
  using SuperBlockByteCodes::SuperBlockByteCodes;
  __device__ void pair(int j, int t, uint2& a, uint2& b) const { split(read_quarter(tile + 16 + 32 * j, t), a, b); }
  __device__ void row_pair(int j, int t, uint2& a, uint2& b) const { split(read_eight(tile + 16 + 32 * j, t), a, b); }

 private:
  __device__ static void split(uint2 words, uint2& a, uint2& b) {
    a = words & 0x0F0F0F0FU;
    b = words & 0xF0F0F0F0U;
  }
};

template <>
struct ByteCodes<DType::kQ5_K> : SuperBlockByteCodes {
  static constexpr int kSpread = 1;
  using SuperBlockByteCodes::SuperBlockByteCodes;
  __device__ void pair(int j, int t, uint2& a, uint2& b) const {
    join(read_quarter(tile + 48 + 32 * j, t), read_quarter(tile + 16, t) >> (2 * j), a, b);
  }
  __device__ void row_pair(int j, int t, uint2& a, uint2& b) const {
    join(read_eight(tile + 48 + 32 * j, t), read_eight(tile + 16, t) >> (2 * j), a, b);
  }

 private:
  __device__ static void join(uint2 words, uint2 fifth, uint2& a, uint2& b) {
    a = (words & 0x0F0F0F0FU) | (fifth & 0x01010101U) << 4;
    b = (words >> 4 & 0x0F0F0F0FU) | (fifth & 0x02020202U) << 3;
  }
};

template <>
struct ByteCodes<DType::kQ6_K> {
  static constexpr int kGroup = 16;
  static constexpr int kSpread = 1;
  static constexpr bool kSigned = false;
  static constexpr bool kShifted = true;
  ShiftedWords words;
  float scale_of_all;

  __device__ explicit ByteCodes(const std::uint8_t* tile)
      : words(tile), scale_of_all(f16_bits_to_f32(read_half<2>(tile + 208))) {}
  __device__ static constexpr int first(int j) { return j / 2 * 4 + j % 2; }
  __device__ static constexpr int second(int j) { return first(j) + 2; }
  __device__ void pair(int j, int t, uint2& a, uint2& b) const {
    join(words.quarter(32 * j, t), words.quarter(128 + j / 2 * 32, t) >> (j % 2 * 2), a, b);
  }
  __device__ void row_pair(int j, int t, uint2& a, uint2& b) const {
    join(eight(32 * j, t), eight(128 + j / 2 * 32, t) >> (j % 2 * 2), a, b);
  }
  __device__ uint2 eight(int offset, int t) const { return {words[offset / 4 + 2 * t], words[offset / 4 + 2 * t + 1]}; }
  __device__ static void join(uint2 low, uint2 high, uint2& a, uint2& b) {
    a = (low & 0x0F0F0F0FU) | (high & 0x03030303U) << 4;
    b = (low >> 4 & 0x0F0F0F0FU) | (high & 0x30303030U);
  }
  __device__ int scale(int sub_block, int half) const {
    // The byte, then its sign three times.
    const auto selector = 0x8880U + 0x1111U * static_cast<std::uint32_t>(sub_block % 2 * 2 + half);
    int scale;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(scale) : "r"(words[48 + sub_block / 2]), "r"(selector));
    return scale;
  }
  __device__ std::uint32_t number(int t, int i) const {
    return add_halves(halves_of(words[48 + t] ^ 0x80808080U, i), -1152.0F);
  }
  __device__ float d() const { return scale_of_all; }
  __device__ float factor() const { return -32.0F * scale_of_all; }
};

template <>
struct ByteCodes<DType::kQ8_0> {
  static constexpr int kGroup = 32;
  static constexpr int kSpread = 1;
  static constexpr bool kSigned = true;
  static constexpr bool kShifted = false;
  const std::uint8_t* tile;

  __device__ explicit ByteCodes(const std::uint8_t* at) : tile(at) {}
  __device__ static constexpr int first(int j) { return 2 * j; }
  __device__ static constexpr int second(int j) { return 2 * j + 1; }
  __device__ void pair(int j, int t, uint2& a, uint2& b) const {
    a = codes(2 * j, t);
    b = codes(2 * j + 1, t);
  }
  __device__ void row_pair(int j, int t, uint2& a, uint2& b) const {
    a = row_codes(2 * j, t);
    b = row_codes(2 * j + 1, t);
  }
  __device__ float scale(int sub_block, int) const { return f16_bits_to_f32(read_half<2>(tile + 34 * sub_block)); }

 private:
  __device__ uint2 codes(int sub_block, int t) const {
    return {even_word(tile, 34 * sub_block + 2, t), even_word(tile, 34 * sub_block + 18, t)};
  }
  __device__ uint2 row_codes(int sub_block, int t) const {
    return {even_word(tile, 34 * sub_block + 2, 2 * t), even_word(tile, 34 * sub_block + 2, 2 * t + 1)};
  }
};

// to += scales products, of the half-th 16 weights of a sub-block of the lane's two weight rows.
template <class Codes>
__device__ __forceinline__ void add_scaled(const Codes (&codes)[2], int sub_block, int half,
                                           const std::int32_t (&products)[4], std::int32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] += static_cast<std::int32_t>(codes[i / 2].scale(sub_block, half)) * products[i];
  }
}

// Multiplies a sub-block of both weight rows, of which the lane has `bytes`, with the activations at own_x. Adds to
// whole, or if the format is kSigned to scaled.
template <class Codes, int kTiles>
__device__ __forceinline__ void multiply_sub_block(const Codes (&codes)[2], int sub_block, const uint2 (&bytes)[2],
                                                   const std::uint8_t* own_x, int pitch,
                                                   std::int32_t (&whole)[kTiles][4], float (&scaled)[kTiles][2]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const uint2 four = *reinterpret_cast<const uint2*>(own_x + 4 * n * pitch + 64 * sub_block);
    std::int32_t products[4];
    if constexpr (Codes::kGroup == 32) {
      multiply_bytes_32<Codes::kSigned>(products, bytes[0].x, bytes[1].x, bytes[0].y, bytes[1].y, four.x, four.y);
      if constexpr (Codes::kSigned) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto product = static_cast<float>(128 * products[2 * i] + products[2 * i + 1]);
          scaled[n][i] = fmaf(codes[i].scale(sub_block, 0), product, scaled[n][i]);
        }
      } else {
        add_scaled(codes, sub_block, 0, products, whole[n]);
      }
    } else {
      multiply_bytes_16(products, bytes[0].x, bytes[1].x, four.x);
      add_scaled(codes, sub_block, 0, products, whole[n]);
      multiply_bytes_16(products, bytes[0].y, bytes[1].y, four.y);
      add_scaled(codes, sub_block, 1, products, whole[n]);
    }
  }
}

// products = sum_g number_g X_g. x_sums: the lane's words of X.
template <class Codes>
__device__ __forceinline__ void multiply_numbers(const Codes (&codes)[2], uint4 x_sums, int t, float (&products)[4]) {
  std::uint32_t numbers[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) numbers[i] = codes[i % 2].number(t, i / 2);
#pragma unroll
  for (float& product : products) product = 0.0F;
  multiply_add<__half>(products, numbers, x_sums.x, x_sums.y);
  multiply_add<__half>(products, numbers, x_sums.z, x_sums.w);
}

// sums += x_scales (d whole + factor sum_g number_g X_g). x_sums: the lane's words of X, whose column 2 t + n is row
// 4 n + t of the activations. whole[1], if there is one, is of the codes that are not kSpread times as large.
template <class Codes, int kRanges, int kTiles>
__device__ __forceinline__ void add_whole(const Codes (&codes)[2], const std::int32_t (&whole)[kRanges][kTiles][4],
                                          const float (&x_scales)[kTiles], uint4 x_sums, int t,
                                          float (&sums)[kTiles][2]) {
  float products[4];
  multiply_numbers(codes, x_sums, t, products);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float d = codes[i].d() * (1.0F / Codes::kSpread);
    const float factor = codes[i].factor() * kFixedSumUnit;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      std::int32_t high = whole[0][n][2 * i];
      std::int32_t low = whole[0][n][2 * i + 1];
      if constexpr (kRanges > 1) {
        high = Codes::kSpread * high + whole[1][n][2 * i];
        low = Codes::kSpread * low + whole[1][n][2 * i + 1];
      }
      const float product = d * fmaf(128.0F, static_cast<float>(high), static_cast<float>(low));
      sums[n][i] = fmaf(x_scales[n], fmaf(factor, products[2 * i + n], product), sums[n][i]);
    }
  }
}

// sums += weights[16, 256] x[256, 4 kTiles]: a lane holds rows lane / 4 and lane / 4 + 8 of column 4 n + lane % 4, for
// column tile n. upper, lower: the K tiles of the lane's two weight rows; x: the K tile's record of the first row of
// activations, `pitch` bytes before that of the next. Columns without activations may hold anything.
template <DType kType, int kTiles>
__device__ inline void multiply_bytes(const std::uint8_t* upper, const std::uint8_t* lower, const std::uint8_t* x,
                                      int pitch, float (&sums)[kTiles][2]) {
  using Codes = ByteCodes<kType>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
  const std::uint8_t* const own_x = x + g / 2 * pitch + g % 2 * 32 + 8 * t;
  const Codes codes[2] = {Codes(upper), Codes(lower)};
  constexpr int kRanges = Codes::kSpread > 1 ? 2 : 1;
  std::int32_t whole[kRanges][kTiles][4] = {};  // products as multiples of d
  float scaled[kTiles][2] = {};                 // of kSigned
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint2 first[2];
    uint2 second[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) codes[row].pair(j, t, first[row], second[row]);
    multiply_sub_block(codes, Codes::first(j), first, own_x, pitch, whole[0], scaled);
    multiply_sub_block(codes, Codes::second(j), second, own_x, pitch, whole[kRanges - 1], scaled);
  }

  float x_scales[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    x_scales[n] = *reinterpret_cast<const float*>(x + (4 * n + t) * pitch + kFixedScaleAt);
  }
  if constexpr (Codes::kSigned) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) sums[n][i] = fmaf(x_scales[n], scaled[n][i], sums[n][i]);
    }
  } else {
    const uint4 x_sums =
        *reinterpret_cast<const uint4*>(x + (g / 2 + (kTiles > 1 ? g % 2 * 4 : 0)) * pitch + kFixedSumsAt + 16 * t);
    add_whole(codes, whole, x_scales, x_sums, t, sums);
  }
}

}  // namespace thalweg::cu
