#pragma once

// Packed weights (packed_weights.h) as f16, eight at a time, for the formats whose range fits f16.
//
// A weight costs 2 instructions instead of bf16's 3: a code below a byte 0x64 is 1024 + code in f16, and the rest is
// done for two weights at once. Scale, offset and weight are rounded to f16, each by at most 2^-11 of its value: an
// NMSE of 1e-7 at most, where bf16's single rounding costs 2.8e-6.

#include <cuda_fp16.h>

#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

// The factor of f16 weights. Scales of trained models can be below 2^-14, the smallest normal f16. Weights up to 4094
// fit.
template <DType kType>
constexpr float kHalfFactor = 16.0F;

// Converts eight codes of a group, one in a byte, to factor times weights.
__device__ inline void scale_codes_to_halves(uint2 codes, Scaling group, float factor, std::uint32_t (&pairs)[4]) {
  const std::uint32_t scale = pack<__half>(factor * group.scale, factor * group.scale);
  const std::uint32_t offset = pack<__half>(factor * group.offset, factor * group.offset);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t bias_bytes = __byte_perm(i < 2 ? codes.x : codes.y, 0x64U, i % 2 == 0 ? 0x4140 : 0x4342);
    const __half2 code = __hadd2(reinterpret_cast<const __half2&>(bias_bytes), __float2half2_rn(-1024.0F));
    const __half2 weight =
        __hfma2(code, reinterpret_cast<const __half2&>(scale), reinterpret_cast<const __half2&>(offset));
    pairs[i] = reinterpret_cast<const std::uint32_t&>(weight);
  }
}

// kHalfFactor times weights 8 j .. 8 j + 7, the first in bits 0..15 of pairs[0].
template <DType kType>
__device__ inline void eight_halves(const PackedWeights<kType>& packed, int j, std::uint32_t (&pairs)[4]) {
  if constexpr (requires { packed.eight_halves(j, pairs); }) {
    packed.eight_halves(j, pairs);
  } else {
    scale_codes_to_halves(packed.codes(j), packed.scaling(j / 2), kHalfFactor<kType>, pairs);
  }
}

}  // namespace thalweg::cu
