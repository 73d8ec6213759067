// y = sum over slots of weight_s down[expert_s] h_s, and the shared expert's output with its own weight. Threadgroup: a
// token and 16 outputs.

#include "metal/kernels/parameters_layers.h"
#include "metal/kernels/row_products.h"

[[max_total_threads_per_threadgroup(128)]] kernel void experts_down(constant ExpertMatmulParameters& p [[buffer(0)]],
                                                                    device const uchar* down [[buffer(1)]],  // [E,N,K]
                                                                    device const float* h [[buffer(2)]],     // [T,S,K]
                                                                    device const int* ids [[buffer(3)]],     // [T,S]
                                                                    device const float* weights [[buffer(4)]],  // [T,S]
                                                                    device const float* shared [[buffer(5)]],   // [T,N]
                                                                    device const float* shared_logit
                                                                    [[buffer(6)]],                 // [T]
                                                                    device void* y [[buffer(7)]],  // [T,N]
                                                                    uint3 group [[threadgroup_position_in_grid]],
                                                                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                    uint lane [[thread_index_in_simdgroup]]) {
  const int token = int(group.y);
  const int first = first_output(group.x, simdgroup);
  float sums[kRowsOfSimdgroup];
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) sums[r] = 0.0f;
  for (int slot = 0; slot < p.slots; ++slot) {
    const int expert = ids[token * p.ids_token + slot];
    if (expert < 0 || expert >= p.experts) continue;
    const float weight = weights[token * p.slots + slot];
    device const uchar* matrix = down + expert * p.weight_expert;
    const int64_t from = token * p.x_token + slot * p.x_slot;
    for (int octet = int(lane); octet * 8 < p.k; octet += 32) {
      const Inputs8 inputs = load_inputs(h, kF32, from, octet, p.k);
      THALWEG_UNROLL
      for (int r = 0; r < kRowsOfSimdgroup; ++r) {
        if (first + r >= p.n) continue;
        sums[r] += weight * dot8(unpack(matrix + (first + r) * p.weight_row, octet, p.k), inputs);
      }
    }
  }
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    float sum = simd_sum(sums[r]);
    if (lane != 0 || first + r >= p.n) continue;
    if (kShared) sum += sigmoid(shared_logit[token]) * shared[int64_t(token) * p.n + first + r];
    store(y, kOutType, token * p.y_token + first + r, sum);
  }
}
