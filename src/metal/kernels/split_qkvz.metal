// Sorts rows that interleave q, k, v and z by key head. Threadgroup: 512 columns of a token and key head.

#include "metal/kernels/parameters_layers.h"

#include "metal/kernels/common.h"

[[max_total_threads_per_threadgroup(128)]] kernel void split_qkvz(constant SplitParameters& p [[buffer(0)]],
                                                                  device const void* x [[buffer(1)]],
                                                                  device void* q [[buffer(2)]],  // [T,HK,K]
                                                                  device void* k [[buffer(3)]],  // [T,HK,K]
                                                                  device void* v [[buffer(4)]],  // [T,HK,RV]
                                                                  device void* z [[buffer(5)]],  // [T,HK,RV]
                                                                  uint3 group [[threadgroup_position_in_grid]],
                                                                  uint thread_index [[thread_index_in_threadgroup]]) {
  const int head = int(group.y);
  const int token = int(group.z);
  const int64_t from = at(p.x, 0, token, head);
  THALWEG_UNROLL
  for (int i = 0; i < kMovedElements; ++i) {
    const int column = (int(group.x) * kMovedElements + i) * kMoveThreads + int(thread_index);
    if (column >= 2 * p.key + 2 * p.values) continue;
    const float value = load(x, kType, from + column);
    if (column < p.key) {
      store(q, kType, at(p.q, 0, token, head) + column, value);
    } else if (column < 2 * p.key) {
      store(k, kType, at(p.k, 0, token, head) + column - p.key, value);
    } else if (column < 2 * p.key + p.values) {
      store(v, kType, at(p.v, 0, token, head) + column - 2 * p.key, value);
    } else {
      store(z, kType, at(p.z, 0, token, head) + column - 2 * p.key - p.values, value);
    }
  }
}
