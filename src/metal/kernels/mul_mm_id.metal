// y = weight[expert] x, or silu(gate[expert] x) * (up[expert] x). Threadgroup: a tile of up to 32 rows of one expert,
// and 64 outputs; only hit experts have tiles.

#include "metal/kernels/tile_products.h"

constant constexpr int kInputRowsOfThread = kInputFloats / int(kThreads);

[[max_total_threads_per_threadgroup(128)]] kernel void mul_mm_id(constant ExpertMatmulParameters& p [[buffer(0)]],
                                                                 device const uchar* weight [[buffer(1)]],  // [E,N,K]
                                                                 device const uchar* up [[buffer(2)]],      // [E,N,K]
                                                                 device const void* x
                                                                 [[buffer(3)]],  // [T,K] or [T,S,K]
                                                                 device const int* rows [[buffer(4)]],  // [T*S]
                                                                 device const RowTile* tiles [[buffer(5)]],
                                                                 device void* y [[buffer(6)]],  // [T,S,N]
                                                                 threadgroup float* scratch [[threadgroup(0)]],
                                                                 uint3 group [[threadgroup_position_in_grid]],
                                                                 uint thread_index [[thread_index_in_threadgroup]],
                                                                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* inputs = scratch;                  // [32][32]
  threadgroup float* weights = inputs + kInputFloats;   // [64][32]
  threadgroup float* others = weights + kWeightFloats;  // [64][32], of up
  threadgroup float* outputs = weights;                 // [32][64], at the end
  threadgroup int* pairs = (threadgroup int*)inputs;    // [32], before the first inputs and after the last
  device const RowTile& tile = tiles[group.y];
  const int first_column = int(group.x) * kColumnsOfTile;
  device const uchar* matrix = weight + tile.expert * p.weight_expert;
  device const uchar* second = kGated ? up + tile.expert * p.up_expert : matrix;
  const int count = tile.count;
  const int first = tile.first;
  TileSums sums;
  TileSums right;
  clear(sums);
  if (kGated) clear(right);
  if (int(thread_index) < count) pairs[thread_index] = rows[first + int(thread_index)];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int64_t from[kInputRowsOfThread];  // a thread stages one column of every fourth row
  THALWEG_UNROLL
  for (int i = 0; i < kInputRowsOfThread; ++i) {
    const int row = i * int(kThreads) / kDepthOfTile + int(thread_index) / kDepthOfTile;
    from[i] = -1;
    if (row >= count) continue;
    const int pair = pairs[row];
    from[i] = pair / p.slots * p.x_token + (kPerSlot ? pair % p.slots * p.x_slot : 0);
  }
  for (int depth = 0; depth < p.k; depth += kDepthOfTile) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_weights(weights, matrix, p.weight_row, first_column, p.n, depth, p.k, thread_index);
    if (kGated) stage_weights(others, second, p.up_row, first_column, p.n, depth, p.k, thread_index);
    const int index = depth + int(thread_index) % kDepthOfTile;
    THALWEG_UNROLL
    for (int i = 0; i < kInputRowsOfThread; ++i) {
      const bool inside = from[i] >= 0 && index < p.k;
      inputs[i * int(kThreads) + int(thread_index)] = inside ? load(x, kType, from[i] + index) : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply(sums, inputs, weights, simdgroup);
    if (kGated) multiply(right, inputs, others, simdgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (int(thread_index) < count) pairs[thread_index] = rows[first + int(thread_index)];
  store_tiles(sums, outputs, simdgroup);
  if (kGated) store_tiles(right, outputs + kRowsOfTile * kColumnsOfTile, simdgroup);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = int(thread_index); i < count * kColumnsOfTile; i += int(kThreads)) {
    const int column = first_column + i % kColumnsOfTile;
    if (column >= p.n) continue;
    const int pair = pairs[i / kColumnsOfTile];
    const int64_t to = pair / p.slots * p.y_token + pair % p.slots * p.y_slot;
    store(y, kOutType, to + column, tile_output(outputs, i));
  }
}
