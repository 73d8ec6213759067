#pragma once

// The end of a decode step.

#include "metal/kernels/common.h"

// Stores a head's output row [V], with its norm if z is given. Called by a simdgroup.
inline void write_output(threadgroup const float* row, constant StepParameters& p, int batch_row, int token, int head,
                         device const void* z, device const void* norm_weight, device void* y, uint lane) {
  float squares = 0.0f;
  for (int value = int(lane); value < kHeadV; value += 32) squares += row[value] * row[value];
  const float factor = precise::rsqrt(simd_sum(squares) / float(kHeadV) + p.out_norm_eps);
  for (int value = int(lane); value < kHeadV; value += 32) {
    float result = row[value];
    if (kGatedNorm) {
      result *= factor * load(norm_weight, kOutWeightType, value);
      result *= silu(load(z, kType, at(p.z, batch_row, token, head) + value));
    }
    store(y, kOutType, at(p.y, batch_row, token, head) + value, result);
  }
}
