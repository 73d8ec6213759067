#pragma once

// Eight neighbors of bf16, at an address that is a multiple of 16 bytes.

#include "cuda/common/elements.h"

namespace thalweg::cu {

struct Eight {
  float x[8];
};

__device__ inline Eight load_eight(const Bf16* from) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  Eight eight;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    eight.x[2 * i] = __uint_as_float(words[i] << 16);
    eight.x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
  return eight;
}

// Rounds to nearest, ties to even.
__device__ inline uint4 to_bf16(const Eight& eight) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(eight.x[2 * i + 1]), "f"(eight.x[2 * i]));
  }
  return {words[0], words[1], words[2], words[3]};
}
__device__ inline void store_eight(Bf16* to, const Eight& eight) { *reinterpret_cast<uint4*>(to) = to_bf16(eight); }
// For what is not read again soon: store_four_streaming() in elements.h says why.
__device__ inline void store_eight_streaming(Bf16* to, const Eight& eight) {
  __stcs(reinterpret_cast<uint4*>(to), to_bf16(eight));
}

}  // namespace thalweg::cu
