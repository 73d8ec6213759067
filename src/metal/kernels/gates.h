#pragma once

// Decay and write strength of a token and value head.

#include "metal/kernels/common.h"

struct Gate {
  float g;     // natural logarithm of the decay
  float beta;  // write strength
};

// log(1 + e^x), accurate also where 1 + e^x rounds to 1.
inline float softplus(float x) {
  if (x > 20.0f) return x;
  const float e = precise::exp(x);
  const float sum = 1.0f + e;
  return sum == 1.0f ? e : precise::log(sum) * (e / (sum - 1.0f));
}

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }
inline float silu(float x) { return x * sigmoid(x); }

// The gate of a token and value head, from g and beta or from a and b.
inline Gate gate_at(device const void* g, device const void* beta, device const void* a_log, device const void* dt_bias,
                    constant GateViews& views, int row, int token, int h) {
  Gate gate;
  const int64_t index = at(views.g, row, token, h);
  const int64_t beta_offset = at(views.beta, row, token, h);
  if (!kRawGates) {
    gate.g = load(g, kF32, index);
    gate.beta = load(beta, kF32, beta_offset);
    return gate;
  }
  const float x = load(g, kGateType, index) + load(dt_bias, kBiasType, h);
  gate.g = -precise::exp(load(a_log, kALogType, h)) * softplus(x);
  gate.beta = sigmoid(load(beta, kGateType, beta_offset));
  return gate;
}

// The norm's factor for a row whose squares sum to `squares`.
inline float norm_factor(float squares, float eps) {
  if (kNorm == kNormL2) return precise::rsqrt(squares + eps);
  if (kNorm == kNormRms) return precise::rsqrt(squares / float(kHeadK) + eps);
  return 1.0f;
}
