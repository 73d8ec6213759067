// y = x W^T, or silu(gate x) * (up x), for many rows of x. Threadgroup: a tile of 32 rows and 64 outputs.

#include "metal/kernels/parameters_layers.h"
#include "metal/kernels/tile_products.h"

[[max_total_threads_per_threadgroup(128)]] kernel void linear_tiles(constant LinearParameters& p [[buffer(0)]],
                                                                    device const uchar* weight [[buffer(1)]],  // [N,K]
                                                                    device const uchar* up [[buffer(2)]],      // [N,K]
                                                                    device const void* x [[buffer(3)]],        // [T,K]
                                                                    device const float* bias [[buffer(4)]],    // [N]
                                                                    device void* y [[buffer(5)]],              // [T,N]
                                                                    threadgroup float* scratch [[threadgroup(0)]],
                                                                    uint3 group [[threadgroup_position_in_grid]],
                                                                    uint thread_index [[thread_index_in_threadgroup]],
                                                                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* inputs = scratch;                  // [32][32]
  threadgroup float* weights = inputs + kInputFloats;   // [64][32]
  threadgroup float* others = weights + kWeightFloats;  // [64][32], of up
  threadgroup float* outputs = weights;                 // [32][64], at the end
  const int first_column = int(group.x) * kColumnsOfTile;
  const int64_t first = int64_t(group.y) * kRowsOfTile;
  const int count = int(min(int64_t(kRowsOfTile), p.tokens - first));
  TileSums sums;
  TileSums right;
  clear(sums);
  if (kGated) clear(right);
  for (int depth = 0; depth < p.k; depth += kDepthOfTile) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_weights(weights, weight, p.weight_row, first_column, p.n, depth, p.k, thread_index);
    if (kGated) stage_weights(others, up, p.up_row, first_column, p.n, depth, p.k, thread_index);
    for (int i = int(thread_index); i < kInputFloats; i += int(kThreads)) {
      const int row = i / kDepthOfTile;
      const int index = depth + i % kDepthOfTile;
      inputs[i] = row < count && index < p.k ? load(x, kType, (first + row) * p.x_token + index) : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply(sums, inputs, weights, simdgroup);
    if (kGated) multiply(right, inputs, others, simdgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_tiles(sums, outputs, simdgroup);
  if (kGated) store_tiles(right, outputs + kRowsOfTile * kColumnsOfTile, simdgroup);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = int(thread_index); i < count * kColumnsOfTile; i += int(kThreads)) {
    const int column = first_column + i % kColumnsOfTile;
    if (column >= p.n) continue;
    float value = tile_output(outputs, i);
    if (kHasBias) value += bias[column];
    store(y, kOutType, (first + i / kColumnsOfTile) * p.y_token + column, value);
  }
}
