#pragma once

// Q5_0: blocks of 32 in 22 bytes: a scale in f16, the fifth bits in 4 bytes, 16 bytes of nibbles.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ5_0> : CodedWeights<PackedWeights<DType::kQ5_0>, false> {
  static constexpr int kAlign = 2;
  std::uint32_t words[4];
  std::uint32_t high;
  float scale;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    packed.scale = f16_bits_to_f32(read_half<kAlign>(block));
    std::uint32_t all[5];
    read_words<kAlign>(block + 2, all);
    packed.high = all[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed.words[i] = all[1 + i];
    return packed;
  }
  __device__ uint2 codes(int j) const { return five_bits(words, high, j); }
  __device__ Scaling scaling(int) const { return {scale, -16.0F * scale}; }
};

template <>
struct KTileCodes<DType::kQ5_0> : BlockCodes<DType::kQ5_0, 16> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const {
    return quarter_of_five_bits(word(sub_block, 6, t), word(sub_block, 2, 0), t);
  }
};

}  // namespace thalweg::cu
