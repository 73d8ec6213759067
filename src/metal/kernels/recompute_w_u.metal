// w = A_inv (beta k exp(G)), u = A_inv (beta v). Threadgroup: a chunk and a value head, 32
// columns at a time, eight per simdgroup.

#include "metal/kernels/tiles.h"

// Columns of one product: result = lower (factor rows).
inline void product(device const void* data, constant View& view, device void* result, constant View& result_view,
                    Chunk chunk, int from_head, int head, int width, threadgroup const float* lower,
                    threadgroup const float* factors, threadgroup float* block, uint thread_index, uint simdgroup) {
  for (int column = 0; column < width; column += kBlock) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(thread_index); i < kChunk * kBlock; i += int(kThreads)) {
      const int row = i / kBlock;
      const int index = column + i % kBlock;
      const bool inside = row < chunk.length && index < width;
      const float value = inside ? load(data, kType, at(view, chunk.row, chunk.begin + row, from_head) + index) : 0.0f;
      block[i] = seed_round(value * factors[row]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ColumnTiles sums;
    clear(sums);
    multiply_by_lower(sums, lower, block, simdgroup);
    store_column(sums, block, simdgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(thread_index); i < chunk.length * kBlock; i += int(kThreads)) {
      const int index = column + i % kBlock;
      if (index >= width) continue;
      store(result, kType, at(result_view, chunk.row, chunk.begin + i / kBlock, head) + index, block[i]);
    }
  }
}

[[max_total_threads_per_threadgroup(128)]] kernel void recompute_w_u(
    constant WUParameters& p [[buffer(0)]],
    device const void* k [[buffer(1)]],      // [B,T,HK,K]
    device const void* v [[buffer(2)]],      // [B,T,HV,V]
    device const float* beta [[buffer(3)]],  // [B,T,HV]
    device const float* g [[buffer(4)]],     // [B,T,HV]
    device const void* a_inv [[buffer(5)]],  // [B,T,HV,C]
    device const int* bounds [[buffer(6)]],  // [N+1]
    device void* w [[buffer(7)]],            // [B,T,HV,K]
    device void* u [[buffer(8)]],            // [B,T,HV,V]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* lower = scratch;                     // A_inv
  threadgroup float* block = lower + kLowerFloats;        // [64][32]
  threadgroup float* betas = block + kMaxChunk * kBlock;  // [64] beta
  threadgroup float* decayed = betas + kMaxChunk;         // [64] beta exp(G)
  const Chunk chunk = find_chunk(p.sequences, bounds, int(group.x));
  const int h = int(group.y);
  if (chunk.length == 0) return;

  for (int i = int(thread_index); i < kChunk; i += int(kThreads)) {
    const bool inside = i < chunk.length;
    betas[i] = inside ? beta[at(p.beta, chunk.row, chunk.begin + i, h)] : 0.0f;
    decayed[i] = inside ? betas[i] * precise::exp(g[at(p.g, chunk.row, chunk.begin + i, h)]) : 0.0f;
  }
  for (int cell = int(thread_index); cell < kChunk * kChunk; cell += int(kThreads)) {
    const int i = cell / kChunk;
    const int j = cell % kChunk;
    if (j / 8 > i / 8) continue;
    const bool inside = j <= i && i < chunk.length;
    const int64_t index = at(p.a_inv, chunk.row, chunk.begin + i, h) + j;
    lower[lower_element(i, j)] = inside ? seed_round(load(a_inv, kOutType, index)) : 0.0f;
  }
  product(k, p.k, w, p.w, chunk, key_head(h, p.hk, p.hv), h, kHeadK, lower, decayed, block, thread_index, simdgroup);
  product(v, p.v, u, p.u, chunk, h, h, kHeadV, lower, betas, block, thread_index, simdgroup);
}
