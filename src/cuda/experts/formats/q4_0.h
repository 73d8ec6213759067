#pragma once

// Q4_0: blocks of 32 in 18 bytes: a scale in f16, 16 bytes of nibbles.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ4_0> : ScaledWords<PackedWeights<DType::kQ4_0>, 4, false> {
  __device__ uint2 codes(int j) const { return nibbles(words, j); }
  __device__ Scaling scaling(int) const { return {scale, -8.0F * scale}; }
};

template <>
struct KTileCodes<DType::kQ4_0> : BlockCodes<DType::kQ4_0, 8> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const { return both_nibbles(word(sub_block, 2, t)); }
};

}  // namespace thalweg::cu
