#pragma once

// Q4_0: blocks of 32 in 18 bytes: a scale in f16, 16 bytes of nibbles.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ4_0> : CodedWeights<PackedWeights<DType::kQ4_0>, false> {
  static constexpr int kAlign = 2;
  std::uint32_t words[4];
  float scale;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    packed.scale = f16_bits_to_f32(read_half<kAlign>(block));
    read_words<kAlign>(block + 2, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return nibbles(words, j); }
  __device__ Scaling scaling(int) const { return {scale, -8.0F * scale}; }
};

template <>
struct KTileCodes<DType::kQ4_0> : BlockCodes<DType::kQ4_0, 8> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const { return both_nibbles(word(sub_block, 2, t)); }
};

}  // namespace thalweg::cu
