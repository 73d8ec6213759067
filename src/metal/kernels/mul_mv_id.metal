// y = weight[expert] x, or silu(gate[expert] x) * (up[expert] x). Threadgroup: a token, a slot and 16 outputs.

#include "metal/kernels/row_products.h"

// Of the matrix, and of the second one of gated products.
struct ExpertSums {
  float sum[kRowsOfSimdgroup];
  float other[kRowsOfSimdgroup];
};

inline ExpertSums expert_sums(device const uchar* first_row, device const uchar* first_up, device const void* x,
                              int64_t from, constant ExpertMatmulParameters& p, int rows, uint lane) {
  ExpertSums sums;
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) sums.sum[r] = sums.other[r] = 0.0f;
  for (int i = int(lane); i < lane_items(p.k); i += 32) {
    const LaneItem item = lane_item(i);
    const RowScales scales = row_scales(first_row, p.weight_row, rows, item);
    RowScales up_scales;
    if (kGated) up_scales = row_scales(first_up, p.up_row, rows, item);
    THALWEG_UNROLL
    for (int pair = 0; pair < kMostLanePairs; ++pair) {
      if (pair >= kLanePairs) continue;
      const InputPair inputs = load_inputs(x, kType, from, item, pair, p.k);
      THALWEG_UNROLL
      for (int r = 0; r < kRowsOfSimdgroup; ++r) {
        if (r >= rows) continue;
        sums.sum[r] += dot_pair(row_pair(first_row + r * p.weight_row, item, pair, scales.row[r], p.k), inputs);
        if (!kGated) continue;
        sums.other[r] += dot_pair(row_pair(first_up + r * p.up_row, item, pair, up_scales.row[r], p.k), inputs);
      }
    }
  }
  return sums;
}

[[max_total_threads_per_threadgroup(128)]] kernel void mul_mv_id(constant ExpertMatmulParameters& p [[buffer(0)]],
                                                                 device const uchar* weight [[buffer(1)]],  // [E,N,K]
                                                                 device const uchar* up [[buffer(2)]],      // [E,N,K]
                                                                 device const void* x
                                                                 [[buffer(3)]],  // [T,K] or [T,S,K]
                                                                 device const int* ids [[buffer(4)]],  // [T,S]
                                                                 device void* y [[buffer(5)]],         // [T,S,N]
                                                                 uint3 group [[threadgroup_position_in_grid]],
                                                                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                 uint lane [[thread_index_in_simdgroup]]) {
  const int token = int(group.y) / p.slots;
  const int slot = int(group.y) % p.slots;
  const int expert = ids[token * p.ids_token + slot];
  if (expert < 0 || expert >= p.experts) return;
  const int first = first_output(group.x, simdgroup);
  if (first >= p.n) return;
  const int64_t from = token * p.x_token + (kPerSlot ? slot * p.x_slot : 0);
  device const uchar* first_row = weight + expert * p.weight_expert + first * p.weight_row;
  device const uchar* first_up = kGated ? up + expert * p.up_expert + first * p.up_row : first_row;
  const ExpertSums sums = expert_sums(first_row, first_up, x, from, p, p.n - first, lane);
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    float sum = simd_sum(sums.sum[r]);
    if (kGated) sum = silu(sum) * simd_sum(sums.other[r]);
    if (lane != 0 || first + r >= p.n) continue;
    store(y, kOutType, token * p.y_token + slot * p.y_slot + first + r, sum);
  }
}
