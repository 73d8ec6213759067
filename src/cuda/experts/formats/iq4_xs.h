#pragma once

// IQ4_XS: blocks of 256 in 136 bytes: a scale in f16, eight 6-bit scales (2 high bits each in 2 bytes, 4 low bits each
// in 4 bytes), 128 bytes of nibbles.

#include "cuda/experts/formats/iq4.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kIQ4_XS> : CodedWeights<PackedWeights<DType::kIQ4_XS>, true> {
  static constexpr int kAlign = 8;
  std::uint32_t words[4];
  float scale;

  __device__ static PackedWeights read(const std::uint8_t* block, int sub_block) {
    PackedWeights packed;
    std::uint32_t head[2];
    read_words<kAlign>(block, head);
    const std::uint32_t low = head[1] >> (4 * sub_block) & 15U;
    const std::uint32_t upper = head[0] >> (16 + 2 * sub_block) & 3U;
    packed.scale = low_f16(head[0]) * static_cast<float>(static_cast<int>(low | upper << 4) - 32);
    read_words<kAlign>(block + 8 + 16 * sub_block, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return iq4_codes(words, j); }
  __device__ Scaling scaling(int) const { return {scale, -128.0F * scale}; }
};

template <>
struct KTileCodes<DType::kIQ4_XS> {
  static constexpr int kGroup = 32;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = false;
  const std::uint8_t* row;
  float d;
  std::uint32_t low;    // the lower four bits of the scales
  std::uint32_t upper;  // the upper two

  __device__ explicit KTileCodes(const std::uint8_t* tile) : row(tile) {
    std::uint32_t head[2];
    read_words<8>(tile, head);
    d = low_f16(head[0]);
    upper = head[0] >> 16;
    low = head[1];
  }
  __device__ std::uint32_t scale_plus_32(int sub_block) const {
    return (low >> (4 * sub_block) & 15U) | (upper >> (2 * sub_block) & 3U) << 4;
  }
  __device__ float scale(int sub_block, int, std::uint32_t) const {
    return fmaf(__uint_as_float(0x43000000U | scale_plus_32(sub_block) << 16), d, -160.0F * d);
  }
  __device__ uint2 bytes(int sub_block, int t) const { return iq4_bytes(read_word(row + 8 + 16 * sub_block + 4 * t)); }
  __device__ std::uint32_t first(int t, int i) const {
    return add_halves(scale_plus_32(2 * t + i) * 0x10001U | 0x64006400U, -1056.0F);
  }
  __device__ float first_factor() const { return (-kCodeBias - 128.0F) * d; }
};

}  // namespace thalweg::cu
