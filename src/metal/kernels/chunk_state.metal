// The states between chunks. Threadgroup: a sequence, a value head and 32 rows of its state, which stay in registers.

#include "metal/kernels/state_tiles.h"

// values [64][kBlock], columns of V from `column` on: from w S^T to v' = u - w S^T with the decay to the chunk's end.
// Stores v' without it.
inline void make_changes(threadgroup float* values, threadgroup const float* gates, device const void* u,
                         device void* v_new, constant StateParameters& p, Chunk chunk, int head, int column,
                         uint thread_index) {
  const float last = gates[chunk.length - 1];
  for (int i = int(thread_index); i < kChunk * kBlock; i += int(kThreads)) {
    const int row = i / kBlock;
    const int index = column + i % kBlock;
    float change = 0.0f;
    if (row < chunk.length && index < kHeadV) {
      change = load(u, kType, at(p.u, chunk.row, chunk.begin + row, head) + index) - values[i];
      if (kHasNew) store(v_new, kType, at(p.v_new, chunk.row, chunk.begin + row, head) + index, change);
      change = seed_round(change * precise::exp(last - gates[row]));
    }
    values[i] = change;
  }
}

[[max_total_threads_per_threadgroup(128)]] kernel void chunk_state(
    constant StateParameters& p [[buffer(0)]],
    device const void* k [[buffer(1)]],              // [B,T,HK,K]
    device const void* w [[buffer(2)]],              // [B,T,HV,K]
    device const void* u [[buffer(3)]],              // [B,T,HV,V]
    device const float* g [[buffer(4)]],             // [B,T,HV]
    device const void* initial_state [[buffer(5)]],  // [slots,HV,V,K]
    device const int* indices [[buffer(6)]],         // [N]
    device const int* bounds [[buffer(7)]],          // [N+1]
    device void* h [[buffer(8)]],                    // [B,NC,HV,V,K]
    device void* v_new [[buffer(9)]],                // [B,T,HV,V]
    device void* final_state [[buffer(10)]],         // like initial_state
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float* rows = scratch;                       // [64][32] of w, then of k
  threadgroup float* values = rows + kMaxChunk * kBlock;   // [64][32]: v', the threadgroup's columns
  threadgroup float* gates = values + kMaxChunk * kBlock;  // [64]
  threadgroup float* exchange = gates + kMaxChunk + simdgroup * 64;
  const int column = int(group.x) * kBlock;
  const int value = column + int(simdgroup) * 8;
  const int head = int(group.y);
  const int n = int(group.z);
  const int kh = key_head(head, p.hk, p.hv);
  const Slot slot = slot_of(indices, n, p.slots);
  if (!slot.valid) return;

  StateTiles state;
  if (kHasInitial && slot.index >= 0) {
    load_state(state, initial_state, p.initial, slot.index, head, value, exchange, lane);
  } else {
    clear(state);
  }
  const int length = sequence_length(p.sequences, bounds, n);
  Chunk chunk;
  chunk.row = sequence_row(n);
  chunk.number = 0;
  if (kRagged) {
    for (int m = 0; m < n; ++m) chunk.number += chunks_of(sequence_length(p.sequences, bounds, m));
  }
  for (int done = 0; done < length; done += kChunk) {
    chunk.begin = sequence_begin(bounds, n) + done;
    chunk.length = min(kChunk, length - done);
    if (kHasStates) store_state(state, h, kType, p.h, chunk.row, chunk.number, head, value, exchange, lane);

    ColumnTiles products;  // w S^T
    clear(products);
    for (int inner = 0; inner < kHeadK; inner += kBlock) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage(rows, w, p.w, chunk, head, inner, kHeadK, thread_index);
      if (inner == 0) stage_vector(gates, g, p.g, chunk, head, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_state(products, rows, inner, state);
    }
    store_column(products, values, simdgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    make_changes(values, gates, u, v_new, p, chunk, head, column, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ColumnTiles changes;
    THALWEG_UNROLL
    for (int j = 0; j < kMaxRowTiles; ++j) {
      if (j < row_tiles()) simdgroup_load(changes.tile[j], values + j * 8 * kBlock + simdgroup * 8, kBlock);
    }
    for (int inner = 0; inner < kHeadK; inner += kBlock) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage(rows, k, p.k, chunk, kh, inner, kHeadK, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      update_state(state, precise::exp(gates[chunk.length - 1]), rows, inner, changes);
    }
    ++chunk.number;
  }
  if (kHasFinal && slot.index >= 0) {
    store_state(state, final_state, kStateType, p.final, slot.index, 0, head, value, exchange, lane);
  }
}
