// a_inv = (I + a)^-1. Threadgroup: a chunk and a value head.

#include "metal/kernels/invert.h"

[[max_total_threads_per_threadgroup(128)]] kernel void solve_tril(constant SolveParameters& p [[buffer(0)]],
                                                                  device const float* a [[buffer(1)]],     // [B,T,HV,C]
                                                                  device const int* bounds [[buffer(2)]],  // [N+1]
                                                                  device void* a_inv [[buffer(3)]],        // [B,T,HV,C]
                                                                  threadgroup float* scratch [[threadgroup(0)]],
                                                                  uint3 group [[threadgroup_position_in_grid]],
                                                                  uint thread_index [[thread_index_in_threadgroup]],
                                                                  uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* lower = scratch;
  threadgroup float* temporary = lower + kLowerFloats;
  const Chunk chunk = find_chunk(p.sequences, bounds, int(group.x));
  const int h = int(group.y);
  if (chunk.length == 0) return;

  for (int cell = int(thread_index); cell < kChunk * kChunk; cell += int(kThreads)) {
    const int i = cell / kChunk;
    const int j = cell % kChunk;
    if (j / 8 > i / 8) continue;
    const bool inside = j < i && i < chunk.length;
    lower[lower_element(i, j)] = inside ? -a[at(p.a, chunk.row, chunk.begin + i, h) + j] : 0.0f;
  }
  // a_inv may be a itself.
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  invert(lower, temporary, thread_index, simdgroup);
  for (int cell = int(thread_index); cell < chunk.length * kChunk; cell += int(kThreads)) {
    const int i = cell / kChunk;
    const int j = cell % kChunk;
    const float value = j <= i ? lower[lower_element(i, j)] : 0.0f;
    store(a_inv, kOutType, at(p.a_inv, chunk.row, chunk.begin + i, h) + j, value);
  }
}
