#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/vector.h"

namespace thalweg::cpu {

// SIMD building blocks of the dense operations, selected together with those of vector.h.
struct NnVectorOps {
  // y = bias + sum_j inputs[j] taps[j,:], elementwise, then silu if `silu`; taps [w,tap_row]. Works in whole
  // vectors: every buffer holds n rounded up to 16 floats, and what y holds beyond n is unspecified.
  void (*convolve)(const float* const* inputs, std::int64_t w, const float* taps, std::int64_t tap_row,
                   const float* bias, bool silu, std::int64_t n, float* y);

  void (*scale_multiply)(float alpha, const float* a, const float* b, std::int64_t n, float* y);  // y = alpha a b
  void (*sigmoid_multiply)(const float* gate, std::int64_t n, float* y);                          // y *= sigmoid(gate)

  // Rotates the pairs (x[i], x[i + half]) by angles given as cosines and sines.
  void (*rotate)(const float* cosine, const float* sine, std::int64_t half, float* x);

  // One block of a row's softmax, n >= 1 scores in a buffer of n rounded up to 16 floats: raises *maximum to the
  // largest scaled score, replaces the scores by exp(scale score - *maximum) and adds them to *sum. Returns the factor
  // that rescales sums taken under the old maximum, 0 if that was -infinity; *sum is already rescaled.
  float (*online_softmax)(float scale, float* scores, std::int64_t n, float* maximum, float* sum);
};

const NnVectorOps& nn_vector_ops();

inline float inverse_rms(const float* x, std::int64_t width, float eps) {
  return 1.0F / std::sqrt(vector_ops().dot(x, x, width) / static_cast<float>(width) + eps);
}

}  // namespace thalweg::cpu
