// sums[t,h] = sum of g[i,h] over the tokens i <= t of its chunk. Threadgroup: a chunk and 32 value heads, a head per
// lane, so that loads are contiguous.

#include "metal/kernels/common.h"

[[max_total_threads_per_threadgroup(32)]] kernel void chunk_local_cumsum(constant CumsumParameters& p [[buffer(0)]],
                                                                         device const float* g
                                                                         [[buffer(1)]],  // [B,T,HV]
                                                                         device const int* bounds
                                                                         [[buffer(2)]],                     // [N+1]
                                                                         device float* sums [[buffer(3)]],  // [B,T,HV]
                                                                         uint3 group [[threadgroup_position_in_grid]],
                                                                         uint lane [[thread_index_in_simdgroup]]) {
  const Chunk chunk = find_chunk(p.sequences, bounds, int(group.y));
  const int head = int(group.x * 32 + lane);
  if (head >= p.hv) return;
  float sum = 0.0f;
  for (int i = 0; i < chunk.length; ++i) {
    sum += g[at(p.g, chunk.row, chunk.begin + i, head)];
    sums[at(p.sums, chunk.row, chunk.begin + i, head)] = sum;
  }
}
