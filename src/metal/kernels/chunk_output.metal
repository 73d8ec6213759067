// o = scale ((q exp(G)) h^T + tril(q k^T exp(G_i - G_j)) v_new). Threadgroup: a chunk and a value head.

#include "metal/kernels/tiles.h"

[[max_total_threads_per_threadgroup(128)]] kernel void chunk_output(
    constant OutputParameters& p [[buffer(0)]],
    device const void* q [[buffer(1)]],      // [B,T,HK,K]
    device const void* k [[buffer(2)]],      // [B,T,HK,K]
    device const void* v_new [[buffer(3)]],  // [B,T,HV,V]
    device const void* h [[buffer(4)]],      // [B,NC,HV,V,K]
    device const float* g [[buffer(5)]],     // [B,T,HV]
    device const int* bounds [[buffer(6)]],  // [N+1]
    device void* o [[buffer(7)]],            // [B,T,HV,V]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* lower = scratch;                      // tril(q k^T exp(..))
  threadgroup float* rows = lower + kLowerFloats;          // [64][32]
  threadgroup float* others = rows + kMaxChunk * kBlock;   // [64][32]
  threadgroup float* gates = others + kMaxChunk * kBlock;  // [64]
  const Chunk chunk = find_chunk(p.sequences, bounds, int(group.x));
  const int head = int(group.y);
  const int kh = key_head(head, p.hk, p.hv);
  if (chunk.length == 0) return;

  stage_vector(gates, g, p.g, chunk, head, thread_index);
  LowerTiles scores;
  clear(scores);
  for (int column = 0; column < kHeadK; column += kBlock) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage(rows, q, p.q, chunk, kh, column, kHeadK, thread_index);
    stage(others, k, p.k, chunk, kh, column, kHeadK, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_lower(scores, rows, others, simdgroup);
  }
  store_lower(scores, lower, simdgroup);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int cell = int(thread_index); cell < kChunk * kChunk; cell += int(kThreads)) {
    const int i = cell / kChunk;
    const int j = cell % kChunk;
    if (j / 8 > i / 8) continue;
    const int index = lower_element(i, j);
    lower[index] = j <= i ? seed_round(lower[index] * precise::exp(gates[i] - gates[j])) : 0.0f;
  }

  for (int column = 0; column < kHeadV; column += kBlock) {
    ColumnTiles sums;
    clear(sums);
    for (int inner = 0; inner < kHeadK; inner += kBlock) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage(rows, q, p.q, chunk, kh, inner, kHeadK, thread_index);
      // others [32 of V][32 of K]: a block of the state before the chunk.
      for (int i = int(thread_index); i < kBlock * kBlock; i += int(kThreads)) {
        const int value = column + i / kBlock;
        const int key = inner + i % kBlock;
        const int64_t index =
            chunk.row * p.h.slot + chunk.number * p.h.chunk + head * p.h.head + value * p.h.value + key;
        others[i] = value < kHeadV && key < kHeadK ? load(h, kType, index) : 0.0f;
      }
      // Each thread scales the elements that it staged itself.
      for (int i = int(thread_index); i < kChunk * kBlock; i += int(kThreads)) {
        rows[i] *= i / kBlock < chunk.length ? precise::exp(gates[i / kBlock]) : 0.0f;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int t = 0; t < kBlock / 8; ++t) {
        simdgroup_float8x8 state;
        simdgroup_load(state, others + simdgroup * 8 * kBlock + t * 8, kBlock, 0, true);
        multiply_rows(sums, rows, t, state);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage(rows, v_new, p.v_new, chunk, head, column, kHeadV, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_by_lower(sums, lower, rows, simdgroup);
    store_column(sums, rows, simdgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(thread_index); i < chunk.length * kBlock; i += int(kThreads)) {
      const int index = column + i % kBlock;
      if (index >= kHeadV) continue;
      store(o, kOutType, at(p.o, chunk.row, chunk.begin + i / kBlock, head) + index, p.scale * rows[i]);
    }
  }
}
