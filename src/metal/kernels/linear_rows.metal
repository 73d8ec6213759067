// y = x W^T for few rows of x. Threadgroup: 16 outputs of up to four rows, which share each weight that is unpacked.

#include "metal/kernels/parameters_layers.h"
#include "metal/kernels/row_products.h"

// Of the matrix, and of the second one of gated products.
struct RowSums {
  float sum[kRowsOfSimdgroup][kVectorTokens];
  float other[kRowsOfSimdgroup][kVectorTokens];
};

inline RowSums row_sums(device const uchar* weight, device const uchar* up, device const void* x,
                        constant LinearParameters& p, int first, int first_token, uint lane) {
  RowSums sums;
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    THALWEG_UNROLL
    for (int t = 0; t < kVectorTokens; ++t) sums.sum[r][t] = sums.other[r][t] = 0.0f;
  }
  device const uchar* first_row = weight + first * p.weight_row;
  device const uchar* first_up = kGated ? up + first * p.up_row : first_row;
  for (int i = int(lane); i < lane_items(p.k); i += 32) {
    const LaneItem item = lane_item(i);
    const RowScales scales = row_scales(first_row, p.weight_row, p.n - first, item);
    RowScales up_scales;
    if (kGated) up_scales = row_scales(first_up, p.up_row, p.n - first, item);
    THALWEG_UNROLL
    for (int pair = 0; pair < kMostLanePairs; ++pair) {
      if (pair >= kLanePairs) continue;
      InputPair inputs[kVectorTokens];
      THALWEG_UNROLL
      for (int t = 0; t < kVectorTokens; ++t) {
        if (first_token + t < p.tokens) {
          inputs[t] = load_inputs(x, kType, (first_token + t) * p.x_token, item, pair, p.k);
        }
      }
      THALWEG_UNROLL
      for (int r = 0; r < kRowsOfSimdgroup; ++r) {
        if (first + r >= p.n) continue;
        const OctetPair weights = row_pair(first_row + r * p.weight_row, item, pair, scales.row[r], p.k);
        THALWEG_UNROLL
        for (int t = 0; t < kVectorTokens; ++t) {
          if (first_token + t < p.tokens) sums.sum[r][t] += dot_pair(weights, inputs[t]);
        }
        if (!kGated) continue;
        const OctetPair others = row_pair(first_up + r * p.up_row, item, pair, up_scales.row[r], p.k);
        THALWEG_UNROLL
        for (int t = 0; t < kVectorTokens; ++t) {
          if (first_token + t < p.tokens) sums.other[r][t] += dot_pair(others, inputs[t]);
        }
      }
    }
  }
  return sums;
}

[[max_total_threads_per_threadgroup(128)]] kernel void linear_rows(constant LinearParameters& p [[buffer(0)]],
                                                                   device const uchar* weight [[buffer(1)]],  // [N,K]
                                                                   device const uchar* up [[buffer(2)]],      // [N,K]
                                                                   device const void* x [[buffer(3)]],        // [T,K]
                                                                   device const float* bias [[buffer(4)]],    // [N]
                                                                   device void* y [[buffer(5)]],              // [T,N]
                                                                   uint3 group [[threadgroup_position_in_grid]],
                                                                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                   uint lane [[thread_index_in_simdgroup]]) {
  const int first = first_output(group.x, simdgroup);
  if (first >= p.n) return;
  const int first_token = int(group.y) * kVectorTokens;
  const RowSums sums = row_sums(weight, up, x, p, first, first_token, lane);
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    THALWEG_UNROLL
    for (int t = 0; t < kVectorTokens; ++t) {
      if (first_token + t >= p.tokens) continue;
      float sum = simd_sum(sums.sum[r][t]);
      if (kGated) sum = silu(sum) * simd_sum(sums.other[r][t]);
      if (lane != 0 || first + r >= p.n) continue;
      if (kHasBias) sum += bias[first + r];
      store(y, kOutType, (first_token + t) * p.y_token + first + r, sum);
    }
  }
}
