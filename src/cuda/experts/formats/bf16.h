#pragma once

// BF16 weights.

#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

template <>
struct PackedWeights<DType::kBF16> {
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
