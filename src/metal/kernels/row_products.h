#pragma once

// Products of weight rows with few rows of activations: a simdgroup has four rows of the weights, whose columns its
// lanes share, eight neighbors at a time.

#include "metal/kernels/formats.h"
#include "metal/kernels/gates.h"

constant constexpr int kRowsOfSimdgroup = kColumnsOfVector / int(kSimdgroups);

struct Inputs8 {
  float x[8];
};

inline Inputs8 load_inputs(device const void* x, int type, int64_t from, int octet, int k) {
  Inputs8 inputs;
  for (int i = 0; i < 8; ++i) inputs.x[i] = octet * 8 + i < k ? load(x, type, from + octet * 8 + i) : 0.0f;
  return inputs;
}

inline float dot8(thread const Weights8& weights, thread const Inputs8& inputs) {
  float sum = 0.0f;
  for (int i = 0; i < 8; ++i) sum += weights.w[i] * inputs.x[i];
  return sum;
}

// The first output of a simdgroup of a threadgroup of kColumnsOfVector outputs.
inline int first_output(uint group, uint simdgroup) {
  return int(group) * kColumnsOfVector + int(simdgroup) * kRowsOfSimdgroup;
}
