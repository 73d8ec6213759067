#pragma once

// F32 weights.

#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kF32> : PlainWeights<PackedWeights<DType::kF32>, 32> {
  using PlainWeights::eight;
  __device__ void eight(int j, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __uint_as_float(words[8 * j + i]);
  }
};

}  // namespace thalweg::cu
