// Two rows to one, element by element. Threadgroup: 512 columns of a row.

#include "metal/kernels/gates.h"
#include "metal/kernels/parameters_layers.h"

[[max_total_threads_per_threadgroup(128)]] kernel void add_rows(constant PairwiseParameters& p [[buffer(0)]],
                                                                device const void* a [[buffer(1)]],  // [T,D]
                                                                device const void* b [[buffer(2)]],  // [T,D]
                                                                device void* y [[buffer(3)]],        // [T,D]
                                                                uint3 group [[threadgroup_position_in_grid]],
                                                                uint thread_index [[thread_index_in_threadgroup]]) {
  const int64_t token = int64_t(group.y);
  THALWEG_UNROLL
  for (int i = 0; i < kMovedElements; ++i) {
    const int column = (int(group.x) * kMovedElements + i) * kMoveThreads + int(thread_index);
    if (column >= kWidth) continue;
    const float sum = load(a, kType, token * p.a_token + column) + load(b, kType, token * p.b_token + column);
    store(y, kOutType, token * p.y_token + column, sum);
  }
}

[[max_total_threads_per_threadgroup(128)]] kernel void swiglu_rows(constant PairwiseParameters& p [[buffer(0)]],
                                                                   device const void* gate [[buffer(1)]],  // [T,I]
                                                                   device const void* up [[buffer(2)]],    // [T,I]
                                                                   device void* y [[buffer(3)]],           // [T,I]
                                                                   uint3 group [[threadgroup_position_in_grid]],
                                                                   uint thread_index [[thread_index_in_threadgroup]]) {
  const int64_t token = int64_t(group.y);
  THALWEG_UNROLL
  for (int i = 0; i < kMovedElements; ++i) {
    const int column = (int(group.x) * kMovedElements + i) * kMoveThreads + int(thread_index);
    if (column >= kWidth) continue;
    const float right = load(up, kType, token * p.b_token + column);
    store(y, kOutType, token * p.y_token + column, silu(load(gate, kType, token * p.a_token + column)) * right);
  }
}
