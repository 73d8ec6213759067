#pragma once

// F16 weights.

#include "cuda/experts/formats/half_weights.h"

namespace thalweg::cu {

template <>
constexpr float kHalfFactor<DType::kF16> = 1.0F;

template <>
struct PackedWeights<DType::kF16> {
  static constexpr int kAlign = 16;
  static constexpr bool kCoded = false;
  std::uint32_t words[16];

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    read_words<kAlign>(block, packed.words);
    return packed;
  }
  __device__ void eight(int j, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = low_f16(words[4 * j + i]);
      values[2 * i + 1] = high_f16(words[4 * j + i]);
    }
  }
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    float values[8];
    eight(j, values);
    pack_eight(values, pairs);
  }
  // As they are: kHalfFactor is 1.
  __device__ void eight_halves(int j, std::uint32_t (&pairs)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = words[4 * j + i];
  }
};

}  // namespace thalweg::cu
