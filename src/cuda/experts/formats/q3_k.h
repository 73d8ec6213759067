#pragma once

// Q3_K: blocks of 256 in 110 bytes: 32 bytes of third bits, 64 bytes of lower bits, sixteen 6-bit scales in 12 bytes, a
// scale in f16.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ3_K> : CodedWeights<PackedWeights<DType::kQ3_K>, false, 16> {
  static constexpr int kAlign = 2;
  std::uint32_t words[8];
  std::uint32_t high[8];
  int shift;
  int high_shift;
  Scaling groups[2];

  __device__ static PackedWeights read(const std::uint8_t* block, int sub_block) {
    PackedWeights packed;
    read_words<kAlign>(block, packed.high);
    read_words<kAlign>(block + 32 + sub_block / 4 * 32, packed.words);
    packed.shift = sub_block % 4 * 2;
    packed.high_shift = sub_block;
    // Groups 2 sub_block and 2 sub_block + 1: the lower four bits are nibbles of bytes 0..7, the upper two in bytes
    // 8..11.
    const std::uint32_t low = read_half<kAlign>(block + 96 + sub_block % 4 * 2) >> (sub_block / 4 * 4);
    const std::uint32_t upper = read_half<kAlign>(block + 104 + sub_block % 2 * 2) >> (sub_block / 2 * 2);
    const std::uint32_t both = (low & 0x0F0FU) | (upper & 0x0303U) << 4;
    const float scale = f16_bits_to_f32(read_half<kAlign>(block + 108));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float group = scale * static_cast<float>(static_cast<int>(both >> (8 * i) & 63U) - 32);
      packed.groups[i] = {group, -4.0F * group};
    }
    return packed;
  }
  __device__ uint2 codes(int j) const {
    return (eight_of(words, j) >> shift & 0x03030303U) | (eight_of(high, j) >> high_shift & 0x01010101U) << 2;
  }
  __device__ Scaling scaling(int half) const { return groups[half]; }
};

template <>
struct KTileCodes<DType::kQ3_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = false;
  ShiftedWords words;
  float d;
  std::uint32_t head[3];  // the lower four bits of the scales are nibbles of bytes 0..7, the upper two in bytes 8..11

  __device__ explicit KTileCodes(const std::uint8_t* tile)
      : words(tile), d(f16_bits_to_f32(read_half<2>(tile + 108))), head{words[24], words[25], words[26]} {}
  // The scales of four groups plus 32; `four` is 0..3.
  __device__ std::uint32_t scales(int four) const {
    return ((four % 2 == 0 ? head[0] : head[1]) >> (four / 2 * 4) & 0x0F0F0F0FU) | (head[2] >> (2 * four) & 0x03030303U)
                                                                                       << 4;
  }
  __device__ float scale(int sub_block, int half, std::uint32_t bias_bytes) const {
    return fmaf(biased_byte(scales(sub_block / 2), sub_block % 2 * 2 + half, bias_bytes), d, -160.0F * d);
  }
  __device__ uint2 bytes(int sub_block, int t) const {
    const uint2 low = words.quarter(32 + sub_block / 4 * 32, t) >> (sub_block % 4 * 2) & 0x03030303U;
    const uint2 high = words.quarter(0, t) >> sub_block & 0x01010101U;
    return low | high << 2;
  }
  __device__ float offset(int, int, float scale, std::uint32_t) const { return -4.0F * scale; }
  __device__ std::uint32_t first(int t, int i) const { return add_halves(halves_of(scales(t), i), -1056.0F); }
  __device__ float first_factor() const { return (-kCodeBias - 4.0F) * d; }
};

}  // namespace thalweg::cu
