#pragma once

// Q4_K: blocks of 256 in 144 bytes: six_bit_scales.h, then 128 bytes of nibbles.

#include "cuda/experts/formats/half_weights.h"
#include "cuda/experts/formats/six_bit_scales.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ4_K> : CodedWeights<PackedWeights<DType::kQ4_K>, false> {
  static constexpr int kAlign = 16;
  std::uint32_t words[8];
  int shift;
  Scaling group;

  __device__ static PackedWeights read(const std::uint8_t* block, int sub_block) {
    PackedWeights packed;
    std::uint32_t head[4];
    read_words<kAlign>(block, head);
    packed.group = q45_scaling(head, sub_block);
    read_words<kAlign>(block + 16 + sub_block / 2 * 32, packed.words);
    packed.shift = sub_block % 2 * 4;
    return packed;
  }
  __device__ uint2 codes(int j) const { return eight_of(words, j) >> shift & 0x0F0F0F0FU; }
  __device__ Scaling scaling(int) const { return group; }
  // Codes stay where they are in their bytes: those of high nibbles are 16 times as large.
  __device__ void eight_halves(int j, std::uint32_t (&pairs)[4]) const {
    const Scaling shifted{shift == 0 ? group.scale : group.scale / 16, group.offset};
    scale_codes_to_halves(eight_of(words, j) & 0x0F0F0F0FU << shift, shifted, kHalfFactor<DType::kQ4_K>, pairs);
  }
};

template <>
struct KTileCodes<DType::kQ4_K> : SuperBlockCodes<DType::kQ4_K, 16> {
  using SuperBlockCodes::SuperBlockCodes;
  // Codes of odd sub-blocks stay in the high nibbles.
  __device__ uint2 bytes(int sub_block, int t) const {
    return read_quarter(row + 16 + sub_block / 2 * 32, t) & (sub_block % 2 == 0 ? 0x0F0F0F0FU : 0xF0F0F0F0U);
  }
};

struct SmallQ4KCodes : SuperBlockCodes<DType::kQ4_K, 1> {
  using SuperBlockCodes::SuperBlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const {
    return read_quarter(row + 16 + sub_block / 2 * 32, t) >> (sub_block % 2 * 4) & 0x0F0F0F0FU;
  }
};
template <>
struct SmallCodes<DType::kQ4_K> {
  using Type = SmallQ4KCodes;
  static constexpr bool kWide = false;
};

}  // namespace thalweg::cu
