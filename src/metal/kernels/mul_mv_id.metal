// y = weight[expert] x. Threadgroup: a token, a slot and 16 outputs. A simdgroup computes four rows of the weights,
// whose columns its lanes share.

#include "metal/kernels/formats.h"

constant constexpr int kRowsOfSimdgroup = kColumnsOfVector / int(kSimdgroups);

[[max_total_threads_per_threadgroup(128)]] kernel void mul_mv_id(constant ExpertMatmulParameters& p [[buffer(0)]],
                                                                 device const uchar* weight [[buffer(1)]],  // [E,N,K]
                                                                 device const void* x
                                                                 [[buffer(2)]],  // [T,K] or [T,S,K]
                                                                 device const int* ids [[buffer(3)]],  // [T,S]
                                                                 device void* y [[buffer(4)]],         // [T,S,N]
                                                                 uint3 group [[threadgroup_position_in_grid]],
                                                                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                 uint lane [[thread_index_in_simdgroup]]) {
  const int token = int(group.y) / p.slots;
  const int slot = int(group.y) % p.slots;
  const int expert = ids[token * p.ids_token + slot];
  if (expert < 0 || expert >= p.experts) return;
  const int first = int(group.x) * kColumnsOfVector + int(simdgroup) * kRowsOfSimdgroup;
  const int64_t from = token * p.x_token + (kPerSlot ? slot * p.x_slot : 0);
  device const uchar* matrix = weight + expert * p.weight_expert;
  float sums[kRowsOfSimdgroup];
  for (int r = 0; r < kRowsOfSimdgroup; ++r) sums[r] = 0.0f;
  for (int octet = int(lane); octet * 8 < p.k; octet += 32) {
    float inputs[8];
    for (int i = 0; i < 8; ++i) inputs[i] = octet * 8 + i < p.k ? load(x, kType, from + octet * 8 + i) : 0.0f;
    for (int r = 0; r < kRowsOfSimdgroup; ++r) {
      if (first + r >= p.n) continue;
      const Weights8 eight = unpack(matrix + (first + r) * p.weight_row, octet, p.k);
      for (int i = 0; i < 8; ++i) sums[r] += eight.w[i] * inputs[i];
    }
  }
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    const float sum = simd_sum(sums[r]);
    if (lane != 0 || first + r >= p.n) continue;
    store(y, kOutType, token * p.y_token + slot * p.y_slot + first + r, sum);
  }
}
