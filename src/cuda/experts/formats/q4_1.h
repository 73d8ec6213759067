#pragma once

// Q4_1: blocks of 32 in 20 bytes: a scale and a minimum in f16, 16 bytes of nibbles.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ4_1> : CodedWeights<PackedWeights<DType::kQ4_1>, false> {
  static constexpr int kAlign = 4;
  std::uint32_t words[4];
  Scaling block_scaling;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    std::uint32_t head[1];
    read_words<kAlign>(block, head);
    packed.block_scaling = {low_f16(head[0]), high_f16(head[0])};
    read_words<kAlign>(block + 4, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return nibbles(words, j); }
  __device__ Scaling scaling(int) const { return block_scaling; }
};

template <>
struct KTileCodes<DType::kQ4_1> : LevelledBlockCodes<DType::kQ4_1> {
  using LevelledBlockCodes::LevelledBlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const { return both_nibbles(word(sub_block, 4, t)); }
};

}  // namespace thalweg::cu
