// y = x * rsqrt(sum x^2 + eps). Simdgroup: a row of K.

#include "metal/kernels/common.h"

[[max_total_threads_per_threadgroup(128)]] kernel void l2norm(constant L2normParameters& p [[buffer(0)]],
                                                              device const void* x [[buffer(1)]],  // [B,T,H,K]
                                                              device void* y [[buffer(2)]],        // [B,T,H,K]
                                                              uint3 group [[threadgroup_position_in_grid]],
                                                              uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                              uint lane [[thread_index_in_simdgroup]]) {
  const int64_t row = int64_t(group.x) * kSimdgroups + simdgroup;
  if (row >= p.rows) return;
  const int head = int(row % p.heads);
  const int token = int(row / p.heads % p.tokens);
  const int batch = int(row / p.heads / p.tokens);
  const int64_t from = at(p.x, batch, token, head);
  const int64_t to = at(p.y, batch, token, head);
  float squares = 0.0f;
  for (int i = int(lane); i < kHeadK; i += 32) {
    const float value = load(x, kType, from + i);
    squares += value * value;
  }
  const float factor = precise::rsqrt(simd_sum(squares) + p.eps);
  for (int i = int(lane); i < kHeadK; i += 32) store(y, kType, to + i, load(x, kType, from + i) * factor);
}
