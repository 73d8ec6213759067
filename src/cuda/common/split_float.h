#pragma once

// Products of f32 on the tensor cores: every factor is the sum of two tf32 numbers, and of the four products the
// smallest is omitted.

#include "cuda/common/mma.h"

namespace thalweg::cu {

struct SplitFloat {
  std::uint32_t high, low;
};
template <bool kExact = false>  // kExact: x is a tf32 number
__device__ inline SplitFloat split(float x) {
  if constexpr (kExact) return {__float_as_uint(x), 0};
  const std::uint32_t high = __float_as_uint(x) & 0xFFFFE000U;
  return {high, __float_as_uint(x - __uint_as_float(high))};
}

// sum[16,8] + low_sum[16,8] += a[16,8] b[8,8], in two independent sums. kLowA, kLowB: whether a and b have low halves
// that are not zero.
template <bool kLowA, bool kLowB>
__device__ inline void multiply_add_f32(float (&sum)[4], float (&low_sum)[4], const SplitFloat (&a)[4], SplitFloat b0,
                                        SplitFloat b1) {
  const std::uint32_t high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
  const std::uint32_t low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
  if constexpr (kLowA) multiply_add_tf32(low_sum, low, b0.high, b1.high);
  if constexpr (kLowB) multiply_add_tf32(low_sum, high, b0.low, b1.low);
  multiply_add_tf32(sum, high, b0.high, b1.high);
}

}  // namespace thalweg::cu
