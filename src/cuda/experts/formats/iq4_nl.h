#pragma once

// IQ4_NL: blocks of 32 in 18 bytes: a scale in f16, 16 bytes of nibbles.

#include "cuda/experts/formats/iq4.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kIQ4_NL> : ScaledWords<PackedWeights<DType::kIQ4_NL>, 4, true> {
  __device__ uint2 codes(int j) const { return iq4_codes(words, j); }
  __device__ Scaling scaling(int) const { return {scale, -128.0F * scale}; }
};

template <>
struct KTileCodes<DType::kIQ4_NL> : BlockCodes<DType::kIQ4_NL, 128> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int sub_block, int t) const { return iq4_bytes(word(sub_block, 2, t)); }
};

}  // namespace thalweg::cu
