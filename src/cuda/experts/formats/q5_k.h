#pragma once

// Q5_K: blocks of 256 in 176 bytes: six_bit_scales.h, the fifth bits in 32 bytes, 128 bytes of nibbles.

#include "cuda/experts/formats/six_bit_scales.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ5_K> : CodedWeights<PackedWeights<DType::kQ5_K>, false> {
  static constexpr int kAlign = 16;
  std::uint32_t words[8];
  std::uint32_t high[8];
  int shift;
  int high_shift;
  Scaling group;

  __device__ static PackedWeights read(const std::uint8_t* block, int sub_block) {
    PackedWeights packed;
    std::uint32_t head[4];
    read_words<kAlign>(block, head);
    packed.group = q45_scaling(head, sub_block);
    read_words<kAlign>(block + 16, packed.high);
    read_words<kAlign>(block + 48 + sub_block / 2 * 32, packed.words);
    packed.shift = sub_block % 2 * 4;
    packed.high_shift = sub_block;
    return packed;
  }
  __device__ uint2 codes(int j) const {
    return (eight_of(words, j) >> shift & 0x0F0F0F0FU) | (eight_of(high, j) >> high_shift & 0x01010101U) << 4;
  }
  __device__ Scaling scaling(int) const { return group; }
};

template <>
struct KTileCodes<DType::kQ5_K> : SuperBlockCodes<DType::kQ5_K, 1> {
  using SuperBlockCodes::SuperBlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const {
    const uint2 low = read_quarter(row + 48 + sub_block / 2 * 32, t) >> (sub_block % 2 * 4) & 0x0F0F0F0FU;
    const uint2 high = read_quarter(row + 16, t) >> sub_block & 0x01010101U;
    return low | high << 4;
  }
};

}  // namespace thalweg::cu
