#pragma once

// Q5_1: blocks of 32 in 24 bytes: a scale and a minimum in f16, the fifth bits in 4 bytes, 16 bytes of nibbles.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ5_1> : CodedWeights<PackedWeights<DType::kQ5_1>, false> {
  static constexpr int kAlign = 8;
  std::uint32_t words[4];
  std::uint32_t high;
  Scaling block_scaling;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    std::uint32_t head[2];
    read_words<kAlign>(block, head);
    packed.block_scaling = {low_f16(head[0]), high_f16(head[0])};
    packed.high = head[1];
    read_words<kAlign>(block + 8, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return five_bits(words, high, j); }
  __device__ Scaling scaling(int) const { return block_scaling; }
};

template <>
struct KTileCodes<DType::kQ5_1> : LevelledBlockCodes<DType::kQ5_1> {
  using LevelledBlockCodes::LevelledBlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const {
    return quarter_of_five_bits(word(sub_block, 8, t), word(sub_block, 4, 0), t);
  }
};

}  // namespace thalweg::cu
