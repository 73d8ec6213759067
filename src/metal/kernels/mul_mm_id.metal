// y = weight[expert] x. Threadgroup: a tile of up to 32 rows of one expert, and 64 outputs; only hit experts have
// tiles. Weights and activations are staged as f32, so that neither can overflow.

#include "metal/kernels/formats.h"

[[max_total_threads_per_threadgroup(128)]] kernel void mul_mm_id(constant ExpertMatmulParameters& p [[buffer(0)]],
                                                                 device const uchar* weight [[buffer(1)]],  // [E,N,K]
                                                                 device const void* x
                                                                 [[buffer(2)]],  // [T,K] or [T,S,K]
                                                                 device const int* rows [[buffer(3)]],  // [T*S]
                                                                 device const RowTile* tiles [[buffer(4)]],
                                                                 device void* y [[buffer(5)]],  // [T,S,N]
                                                                 threadgroup float* scratch [[threadgroup(0)]],
                                                                 uint3 group [[threadgroup_position_in_grid]],
                                                                 uint thread_index [[thread_index_in_threadgroup]],
                                                                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* weights = scratch;                                 // [64][32]
  threadgroup float* inputs = weights + kColumnsOfTile * kDepthOfTile;  // [32][32]
  threadgroup float* outputs = weights;                                 // [32][64], at the end
  device const RowTile& tile = tiles[group.y];
  const int first_column = int(group.x) * kColumnsOfTile;
  device const uchar* matrix = weight + tile.expert * p.weight_expert;
  const int count = tile.count;
  const int first = tile.first;

  simdgroup_float8x8 sums[4][2];
  THALWEG_UNROLL
  for (int i = 0; i < 4; ++i) {
    THALWEG_UNROLL
    for (int j = 0; j < 2; ++j) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (int depth = 0; depth < p.k; depth += kDepthOfTile) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int item = int(thread_index); item < kColumnsOfTile * kDepthOfTile / 8; item += int(kThreads)) {
      const int column = item / (kDepthOfTile / 8);
      const int octet = item % (kDepthOfTile / 8);
      Weights8 eight;
      if (first_column + column < p.n && depth + octet * 8 < p.k) {
        eight = unpack(matrix + (first_column + column) * p.weight_row, depth / 8 + octet, p.k);
      } else {
        for (int i = 0; i < 8; ++i) eight.w[i] = 0.0f;
      }
      for (int i = 0; i < 8; ++i) weights[column * kDepthOfTile + octet * 8 + i] = eight.w[i];
    }
    for (int i = int(thread_index); i < kRowsOfTile * kDepthOfTile; i += int(kThreads)) {
      const int row = i / kDepthOfTile;
      const int index = depth + i % kDepthOfTile;
      float value = 0.0f;
      if (row < count && index < p.k) {
        const int pair = rows[first + row];
        const int64_t from = pair / p.slots * p.x_token + (kPerSlot ? pair % p.slots * p.x_slot : 0);
        value = load(x, kType, from + index);
      }
      inputs[i] = value;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int k = 0; k < kDepthOfTile / 8; ++k) {
      simdgroup_float8x8 right[2];
      THALWEG_UNROLL
      for (int j = 0; j < 2; ++j) {
        simdgroup_load(right[j], weights + (int(simdgroup) * 16 + j * 8) * kDepthOfTile + k * 8, kDepthOfTile, 0, true);
      }
      THALWEG_UNROLL
      for (int i = 0; i < 4; ++i) {
        simdgroup_float8x8 left;
        simdgroup_load(left, inputs + i * 8 * kDepthOfTile + k * 8, kDepthOfTile);
        THALWEG_UNROLL
        for (int j = 0; j < 2; ++j) simdgroup_multiply_accumulate(sums[i][j], left, right[j], sums[i][j]);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  THALWEG_UNROLL
  for (int i = 0; i < 4; ++i) {
    THALWEG_UNROLL
    for (int j = 0; j < 2; ++j) {
      simdgroup_store(sums[i][j], outputs + i * 8 * kColumnsOfTile + int(simdgroup) * 16 + j * 8, kColumnsOfTile);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = int(thread_index); i < count * kColumnsOfTile; i += int(kThreads)) {
    const int column = first_column + i % kColumnsOfTile;
    if (column >= p.n) continue;
    const int pair = rows[first + i / kColumnsOfTile];
    store(y, kOutType, pair / p.slots * p.y_token + pair % p.slots * p.y_slot + column, outputs[i]);
  }
}
