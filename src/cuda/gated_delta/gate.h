#pragma once

namespace thalweg::cu {

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
