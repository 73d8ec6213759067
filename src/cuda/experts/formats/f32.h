#pragma once

// F32 weights.

#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kF32> {
  static constexpr int kAlign = 16;
  static constexpr bool kCoded = false;
  std::uint32_t words[32];

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    read_words<kAlign>(block, packed.words);
    return packed;
  }
  __device__ void eight(int j, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __uint_as_float(words[8 * j + i]);
  }
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    float values[8];
    eight(j, values);
    pack_eight(values, pairs);
  }
};

}  // namespace thalweg::cu
