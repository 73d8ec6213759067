#pragma once

// A state S [V,K] in registers for the recurrence: a simdgroup holds kStepRows rows, with K distributed over its lanes.

#include "metal/kernels/gates.h"

constant constexpr int kLaneKeys = kMaxHeadSize / 32;

struct StateRows {
  float element[kStepRows][kLaneKeys];
};

inline void clear(thread StateRows& rows) {
  THALWEG_UNROLL
  for (int r = 0; r < kStepRows; ++r) {
    THALWEG_UNROLL
    for (int i = 0; i < kLaneKeys; ++i) rows.element[r][i] = 0.0f;
  }
}

// value: the first of the rows. Rows from V on stay zero.
inline void load_rows(thread StateRows& rows, device const void* data, constant StateView& view, int slot, int head,
                      int value, uint lane) {
  clear(rows);
  THALWEG_UNROLL
  for (int r = 0; r < kStepRows; ++r) {
    THALWEG_UNROLL
    for (int i = 0; i < kLaneKeys; ++i) {
      const int key = i * 32 + int(lane);
      if (i * 32 >= kHeadK || key >= kHeadK || value + r >= kHeadV) continue;
      rows.element[r][i] = load(data, kStateType, state_offset(view, slot, 0, head, value + r, key));
    }
  }
}

inline void store_rows(thread const StateRows& rows, device void* data, int type, constant StateView& view,
                       int64_t slot, int token, int head, int value, uint lane) {
  THALWEG_UNROLL
  for (int r = 0; r < kStepRows; ++r) {
    THALWEG_UNROLL
    for (int i = 0; i < kLaneKeys; ++i) {
      const int key = i * 32 + int(lane);
      if (i * 32 >= kHeadK || key >= kHeadK || value + r >= kHeadV) continue;
      store(data, type, state_offset(view, slot, token, head, value + r, key), rows.element[r][i]);
    }
  }
}

// One token: S = decay S; S += beta (v - S k) k^T; returns S q. Lane r passes v of row r and receives the result of row
// r.
inline float advance(thread StateRows& rows, threadgroup const float* q, threadgroup const float* k, float decay,
                     float beta, float v, uint lane) {
  float result = 0.0f;
  THALWEG_UNROLL
  for (int r = 0; r < kStepRows; ++r) {
    float prediction = 0.0f;
    THALWEG_UNROLL
    for (int i = 0; i < kLaneKeys; ++i) {
      const int key = i * 32 + int(lane);
      if (i * 32 >= kHeadK || key >= kHeadK) continue;
      rows.element[r][i] *= decay;
      prediction += rows.element[r][i] * k[key];
    }
    const float change = beta * (simd_broadcast(v, uint(r)) - simd_sum(prediction));
    float out = 0.0f;
    THALWEG_UNROLL
    for (int i = 0; i < kLaneKeys; ++i) {
      const int key = i * 32 + int(lane);
      if (i * 32 >= kHeadK || key >= kHeadK) continue;
      rows.element[r][i] += change * k[key];
      out += rows.element[r][i] * q[key];
    }
    const float sum = simd_sum(out);
    if (int(lane) == r) result = sum;
  }
  return result;
}

// Multiplies row [K] by `scale`, the factor of its norm and the norm's weights. Called by a simdgroup; each lane
// touches only elements that it wrote itself.
inline void normalize_row(threadgroup float* row, float scale, float eps, device const void* weights,
                          int64_t weight_offset, uint lane) {
  float squares = 0.0f;
  for (int key = int(lane); key < kHeadK; key += 32) squares += row[key] * row[key];
  const float factor = scale * (kNorm ? norm_factor(simd_sum(squares), eps) : 1.0f);
  for (int key = int(lane); key < kHeadK; key += 32) {
    row[key] *= kNorm == kNormRms ? factor * load(weights, kWeightType, weight_offset + key) : factor;
  }
}
