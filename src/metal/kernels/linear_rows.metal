// y = x W^T for few rows of x. Threadgroup: 16 outputs of up to four rows, which share each weight that is unpacked.

#include "metal/kernels/parameters_layers.h"
#include "metal/kernels/row_products.h"

struct RowSums {
  float sum[kRowsOfSimdgroup][kVectorTokens];
};

inline RowSums row_sums(device const uchar* weight, int64_t row_bytes, device const void* x,
                        constant LinearParameters& p, int first, int first_token, uint lane) {
  RowSums sums;
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    THALWEG_UNROLL
    for (int t = 0; t < kVectorTokens; ++t) sums.sum[r][t] = 0.0f;
  }
  for (int octet = int(lane); octet * 8 < p.k; octet += 32) {
    Inputs8 inputs[kVectorTokens];
    THALWEG_UNROLL
    for (int t = 0; t < kVectorTokens; ++t) {
      if (first_token + t < p.tokens) inputs[t] = load_inputs(x, kType, (first_token + t) * p.x_token, octet, p.k);
    }
    THALWEG_UNROLL
    for (int r = 0; r < kRowsOfSimdgroup; ++r) {
      if (first + r >= p.n) continue;
      const Weights8 eight = unpack(weight + (first + r) * row_bytes, octet, p.k);
      THALWEG_UNROLL
      for (int t = 0; t < kVectorTokens; ++t) {
        if (first_token + t < p.tokens) sums.sum[r][t] += dot8(eight, inputs[t]);
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
  const int first_token = int(group.y) * kVectorTokens;
  const RowSums sums = row_sums(weight, p.weight_row, x, p, first, first_token, lane);
  RowSums right = sums;
  if (kGated) right = row_sums(up, p.up_row, x, p, first, first_token, lane);
  THALWEG_UNROLL
  for (int r = 0; r < kRowsOfSimdgroup; ++r) {
    THALWEG_UNROLL
    for (int t = 0; t < kVectorTokens; ++t) {
      if (first_token + t >= p.tokens) continue;
      float sum = simd_sum(sums.sum[r][t]);
      if (kGated) sum = silu(sum) * simd_sum(right.sum[r][t]);
      if (lane != 0 || first + r >= p.n) continue;
      if (kHasBias) sum += bias[first + r];
      store(y, kOutType, (first_token + t) * p.y_token + first + r, sum);
    }
  }
}
