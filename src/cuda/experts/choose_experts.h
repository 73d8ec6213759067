#pragma once

// Chooses a token's experts by one warp, with the logits in registers.

#include <cmath>
#include <cstdint>

#include "cuda/common/warp.h"

namespace thalweg::cu {

// Lane s holds slot s.
struct ChosenExpert {
  int id = -1;
  float logit = -INFINITY;
};

// Logits in device memory that a kernel ahead has written, while this one was there already: not from the L1 cache.
struct FreshLogits {
  const float* data;

  __device__ float operator[](int e) const { return __ldcg(data + e); }
};

// Maps floats to integers in the same order, none of which is 0. NaN counts as minus infinity.
__device__ inline std::uint32_t ordered_bits(float x) {
  const std::uint32_t bits = __float_as_uint(isnan(x) ? -INFINITY : x + 0.0F);  // no -0
  return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}
__device__ inline float from_ordered_bits(std::uint32_t ordered) {
  return __uint_as_float(ordered & 0x80000000U ? ordered & 0x7FFFFFFFU : ~ordered);
}

// Chooses `slots` experts (at most 32 and at most `experts`) in the order of falling logits, among equals the lower id
// first. If `total` is not null, sets it to the sum of exp(logit - largest) over all experts. logits[e] is that of
// expert e.
template <int kPerLane, class Logits>
__device__ inline ChosenExpert choose_experts(const Logits& logits, int experts, int slots, float* total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  std::uint32_t keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + i * kWarpSize;
    keys[i] = e < experts ? ordered_bits(logits[e]) : 0;
  }
  ChosenExpert chosen;
  float sum = 0.0F;
  for (int slot = 0; slot < slots; ++slot) {
    std::uint32_t best = keys[0];
    int at = 0;
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) {
      if (keys[i] > best) best = keys[i], at = i;
    }
    const std::uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, best);
    const unsigned own = best == largest ? static_cast<unsigned>(lane + at * kWarpSize) : 0xFFFFFFFFU;
    const unsigned id = __reduce_min_sync(0xFFFFFFFFU, own);
    if (slot == 0 && total != nullptr) {
      const float first = from_ordered_bits(largest);
#pragma unroll
      for (const std::uint32_t key : keys) sum += key != 0 ? expf(from_ordered_bits(key) - first) : 0.0F;
    }
    if (lane == slot) chosen = {static_cast<int>(id), from_ordered_bits(largest)};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (static_cast<unsigned>(lane + i * kWarpSize) == id) keys[i] = 0;
    }
  }
  if (total != nullptr) *total = warp_sum(sum);
  return chosen;
}

// For up to kMost experts.
template <int kMost, class Logits>
__device__ inline ChosenExpert choose_of(const Logits& logits, int experts, int slots, float* total) {
  if (experts <= 8 * kWarpSize) return choose_experts<8>(logits, experts, slots, total);
  if (kMost <= 16 * kWarpSize || experts <= 16 * kWarpSize) return choose_experts<16>(logits, experts, slots, total);
  return choose_experts<(kMost + kWarpSize - 1) / kWarpSize>(logits, experts, slots, total);
}

}  // namespace thalweg::cu
