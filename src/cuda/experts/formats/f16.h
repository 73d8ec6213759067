#pragma once

// F16 weights.

#include "cuda/experts/formats/half_weights.h"

namespace thalweg::cu {

template <>
constexpr float kHalfFactor<DType::kF16> = 1.0F;

template <>
struct PackedWeights<DType::kF16> : PlainWeights<PackedWeights<DType::kF16>, 16> {
  using PlainWeights::eight;
  __device__ void eight(int j, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = low_f16(words[4 * j + i]);
      values[2 * i + 1] = high_f16(words[4 * j + i]);
    }
  }
  __device__ void eight_halves(int j, std::uint32_t (&pairs)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = words[4 * j + i];
  }
};

}  // namespace thalweg::cu
