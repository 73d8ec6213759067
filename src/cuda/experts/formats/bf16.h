#pragma once

// BF16 weights.

#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kBF16> : PlainWeights<PackedWeights<DType::kBF16>, 16> {
  __device__ void eight(int j, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(words[4 * j + i] << 16);
      values[2 * i + 1] = __uint_as_float(words[4 * j + i] & 0xFFFF0000U);
    }
  }
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = words[4 * j + i];
  }
};

}  // namespace thalweg::cu
