#pragma once

// Products of weight rows with few rows of activations: a simdgroup has four rows of the weights. Its lanes share their
// columns: units of weights with common scales, or kLanePairs of a unit's pairs of octets where rows are short.

#include "metal/kernels/format_units.h"
#include "metal/kernels/gates.h"

constant constexpr int kRowsOfSimdgroup = kColumnsOfVector / int(kSimdgroups);

// What one lane has of a row at a time.
struct LaneItem {
  int unit;
  int first_pair;
};

inline LaneItem lane_item(int item) {
  const int lanes = pairs_of_unit() / kLanePairs;
  LaneItem result;
  result.unit = item / lanes;
  result.first_pair = item % lanes * kLanePairs;
  return result;
}
// Items of a row of k weights; the last one may be partial.
inline int lane_items(int k) { return (k + kLanePairs * 16 - 1) / (kLanePairs * 16); }

struct InputPair {
  float x[2][8];
};

// The activations at a pair's octets, zeros beyond k.
inline InputPair load_inputs(device const void* x, int type, int64_t from, LaneItem item, int pair, int k) {
  InputPair inputs;
  for (int second = 0; second < 2; ++second) {
    const int first = octet_of(item.unit, item.first_pair + pair, second) * 8;
    for (int i = 0; i < 8; ++i) inputs.x[second][i] = first + i < k ? load(x, type, from + first + i) : 0.0f;
  }
  return inputs;
}

inline float dot_pair(thread const OctetPair& weights, thread const InputPair& inputs) {
  float sum = 0.0f;
  for (int i = 0; i < 8; ++i) sum += weights.of[0].w[i] * inputs.x[0][i] + weights.of[1].w[i] * inputs.x[1][i];
  return sum;
}

// The scales of an item in each of the simdgroup's rows, of which `rows` exist.
struct RowScales {
  UnitScales row[kRowsOfSimdgroup];
};

inline RowScales row_scales(device const uchar* first_row, int64_t row_bytes, int rows, LaneItem item) {
  RowScales scales;
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    if (r < rows) scales.row[r] = unit_scales(first_row + r * row_bytes, item.unit);
  }
  return scales;
}

inline OctetPair row_pair(device const uchar* row, LaneItem item, int pair, thread const UnitScales& scales, int k) {
  return unpack_pair(row, item.unit, item.first_pair + pair, scales, k);
}

// The first output of a simdgroup of a threadgroup of kColumnsOfVector outputs.
inline int first_output(uint group, uint simdgroup) {
  return int(group) * kColumnsOfVector + int(simdgroup) * kRowsOfSimdgroup;
}
