// y = weight[expert] x, or silu(gate[expert] x) * (up[expert] x). Threadgroup: a token, a slot and 16 outputs.

#include "metal/kernels/row_products.h"

struct ExpertSums {
  float sum[kRowsOfSimdgroup];
};

inline ExpertSums expert_sums(device const uchar* matrix, int64_t row_bytes, device const void* x, int64_t from,
                              constant ExpertMatmulParameters& p, int first, uint lane) {
  ExpertSums sums;
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) sums.sum[r] = 0.0f;
  for (int octet = int(lane); octet * 8 < p.k; octet += 32) {
    const Inputs8 inputs = load_inputs(x, kType, from, octet, p.k);
    THALWEG_UNROLL
    for (int r = 0; r < kRowsOfSimdgroup; ++r) {
      if (first + r >= p.n) continue;
      sums.sum[r] += dot8(unpack(matrix + (first + r) * row_bytes, octet, p.k), inputs);
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
  const int64_t from = token * p.x_token + (kPerSlot ? slot * p.x_slot : 0);
  const ExpertSums sums = expert_sums(weight + expert * p.weight_expert, p.weight_row, x, from, p, first, lane);
  ExpertSums right = sums;
  if (kGated) right = expert_sums(up + expert * p.up_expert, p.up_row, x, from, p, first, lane);
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    float sum = simd_sum(sums.sum[r]);
    if (kGated) sum = silu(sum) * simd_sum(right.sum[r]);
    if (lane != 0 || first + r >= p.n) continue;
    store(y, kOutType, token * p.y_token + slot * p.y_slot + first + r, sum);
  }
}
