#pragma once

// Q8_0: blocks of 32 in 34 bytes: a scale in f16, 32 signed bytes.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kQ8_0> : ScaledWords<PackedWeights<DType::kQ8_0>, 8, true> {
  __device__ uint2 codes(int j) const { return {words[2 * j] ^ 0x80808080U, words[2 * j + 1] ^ 0x80808080U}; }
  __device__ Scaling scaling(int) const { return {scale, -128.0F * scale}; }
};

template <>
struct KTileCodes<DType::kQ8_0> : BlockCodes<DType::kQ8_0, 128> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const {
    return {word(sub_block, 2, t) ^ 0x80808080U, word(sub_block, 18, t) ^ 0x80808080U};
  }
};

}  // namespace thalweg::cu
