#pragma once

// Q2_K: blocks of 256 in 84 bytes: 16 bytes of 4-bit scales and minima, 64 bytes of codes, a scale and a minimum in
// f16.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ2_K> : CodedWeights<PackedWeights<DType::kQ2_K>, false, 16> {
  static constexpr int kAlign = 4;
  std::uint32_t words[8];
  int shift;
  Scaling groups[2];

  __device__ static PackedWeights read(const std::uint8_t* block, int sub_block) {
    PackedWeights packed;
    const std::uint32_t pair = read_half<kAlign>(block + 2 * sub_block);
    std::uint32_t ends[1];
    read_words<kAlign>(block + 80, ends);
    const float scale = low_f16(ends[0]);
    const float minimum = -high_f16(ends[0]);
    packed.groups[0] = {scale * static_cast<float>(pair & 15U), minimum * static_cast<float>(pair >> 4 & 15U)};
    packed.groups[1] = {scale * static_cast<float>(pair >> 8 & 15U), minimum * static_cast<float>(pair >> 12)};
    read_words<kAlign>(block + 16 + sub_block / 4 * 32, packed.words);
    packed.shift = sub_block % 4 * 2;
    return packed;
  }
  __device__ uint2 codes(int j) const { return eight_of(words, j) >> shift & 0x03030303U; }
  __device__ Scaling scaling(int half) const { return groups[half]; }
};

template <>
struct KTileCodes<DType::kQ2_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = true;
  const std::uint8_t* row;
  float d;
  float minimum;

  __device__ explicit KTileCodes(const std::uint8_t* tile) : row(tile) {
    const std::uint32_t ends = read_word(tile + 80);
    d = low_f16(ends);
    minimum = high_f16(ends);
  }
  __device__ float scale(int sub_block, int half, std::uint32_t bias_bytes) const {
    const std::uint32_t scales = read_word(row + sub_block / 2 * 4) & 0x0F0F0F0FU;
    return fmaf(biased_byte(scales, sub_block % 2 * 2 + half, bias_bytes), d, -128.0F * d);
  }
  __device__ uint2 bytes(int sub_block, int t) const {
    return read_quarter(row + 16 + sub_block / 4 * 32, t) >> (sub_block % 4 * 2) & 0x03030303U;
  }
  __device__ float offset(int sub_block, int half, float, std::uint32_t bias_bytes) const {
    const std::uint32_t minima = read_word(row + sub_block / 2 * 4) >> 4 & 0x0F0F0F0FU;
    return fmaf(biased_byte(minima, sub_block % 2 * 2 + half, bias_bytes), -minimum, 128.0F * minimum);
  }
  __device__ std::uint32_t first(int t, int i) const {
    return add_halves(halves_of(read_word(row + 4 * t) & 0x0F0F0F0FU, i), -1024.0F);
  }
  __device__ std::uint32_t second(int t, int i) const {
    return add_halves(halves_of(read_word(row + 4 * t) >> 4 & 0x0F0F0F0FU, i), -1024.0F);
  }
  __device__ float first_factor() const { return -kCodeBias * d; }
  __device__ float second_factor() const { return -minimum; }
};

}  // namespace thalweg::cu
