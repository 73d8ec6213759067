#pragma once

#include "metal/kernels/common.h"

// The sum over all threads of a threadgroup, in an order that does not depend on timing; scratch [simdgroups].
inline float threadgroup_sum(float value, threadgroup float* scratch, uint simdgroup, uint simdgroups, uint lane) {
  const float own = simd_sum(value);
  if (simdgroups == 1) return own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) scratch[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < simdgroups; ++i) sum += scratch[i];
  return sum;
}
