#pragma once

// Scalars of any float dtype and what is computed of them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/common/tensor_view.h"

namespace thalweg::cu {

enum class ScalarType : std::uint8_t { kF32, kF16, kBF16 };

// A tensor whose rows are read element by element; strides count elements.
struct ScalarView {
  TensorView<const void> tensor;
  ScalarType type;
};

__device__ inline float load_scalar(const void* data, ScalarType type, std::int64_t i) {
  switch (type) {
    case ScalarType::kF16:
      return __half2float(static_cast<const __half*>(data)[i]);
    case ScalarType::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case ScalarType::kF32:
      break;
  }
  return static_cast<const float*>(data)[i];
}

// Element h of [H], or of row (b, t) of [B,T,H].
__device__ inline float load_scalar(const ScalarView& view, int h) {
  return load_scalar(view.tensor.data, view.type, h);
}
__device__ inline float load_scalar(const ScalarView& view, int b, int t, int h) {
  return load_scalar(view.tensor.data, view.type, b * view.tensor.strides[0] + t * view.tensor.strides[1] + h);
}

struct Gate {
  float g;
  float beta;
};
// g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b), softplus(x) = x for x > 20.
__device__ inline Gate compute_gate(float a, float b, float a_log, float dt_bias) {
  const float x = a + dt_bias;
  const float softplus = x > 20.0F ? x : log1pf(expf(x));
  return {-expf(a_log) * softplus, 1.0F / (1.0F + expf(-b))};
}

}  // namespace thalweg::cu
