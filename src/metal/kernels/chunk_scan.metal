// Prefill, second pass: sequential over chunks. Threadgroup: a sequence, a value head and up to 128 rows of its state.
// A simdgroup holds eight rows in registers, as S^T [K,8], and the corresponding columns of r, v' and o:
//
//   r  = beta v - beta exp(G) k S^T
//   v' = (I + A)^-1 r                        equals u - w S^T
//   o  = scale (exp(G) q S^T + tril(q k^T exp(..)) v')
//   S  = exp(G_last) S + v'^T (exp(G_last - G) k)

#include "metal/kernels/state_tiles.h"

// block [64][kBlock] = factors times rows of q or k times the norm's weights.
inline void stage_scaled(threadgroup float* block, device const void* data, constant View& view,
                         device const void* weights, int64_t weight_head, threadgroup const float* factors, Chunk chunk,
                         int head, int column, uint thread_index, uint threads) {
  for (int i = int(thread_index); i < kChunk * kBlock; i += int(threads)) {
    const int row = i / kBlock;
    const int index = column + i % kBlock;
    float value = 0.0f;
    if (row < chunk.length && index < kHeadK) {
      value = load(data, kType, at(view, chunk.row, chunk.begin + row, head) + index) * factors[row];
      if (kNorm == kNormRms) value *= load(weights, kWeightType, head * weight_head + index);
    }
    block[i] = value;
  }
}

inline void stage_lower(threadgroup float* lower, device const float* record, Chunk chunk, uint thread_index,
                        uint threads) {
  const int cells = lower_tile((chunk.length + 7) / 8, 0);
  for (int cell = int(thread_index); cell < kLowerFloats; cell += int(threads)) {
    lower[cell] = cell < cells ? record[cell] : 0.0f;
  }
}

// Stages what the chunk's record says of rows: five factors [64], the last of which is that of the state.
inline void stage_factors(threadgroup float* factors, device const float* record, Chunk chunk, uint thread_index,
                          uint threads) {
  for (int i = int(thread_index); i < 5 * kMaxChunk; i += int(threads)) {
    const bool present = i < 4 * kMaxChunk ? i % kMaxChunk < chunk.length : i == 4 * kMaxChunk;
    factors[i] = present ? record[2 * kLowerFloats + i] : 0.0f;
  }
}

// The first chunk of sequence n. checkpoint: becomes its first checkpoint in the row's.
inline Chunk first_chunk(constant ScanParameters& p, device const int* bounds, int n, thread int& checkpoint) {
  Chunk chunk;
  chunk.row = sequence_row(n);
  chunk.number = kRagged ? 0 : n * chunks_of(p.sequences.tokens);  // among all chunks
  checkpoint = 0;
  if (kRagged) {
    for (int m = 0; m < n; ++m) {
      const int tokens = sequence_length(p.sequences, bounds, m);
      chunk.number += chunks_of(tokens);
      if (kHasStates) checkpoint += (tokens + p.checkpoint_tokens - 1) / p.checkpoint_tokens;
    }
  }
  return chunk;
}

// values = beta v for eight columns of V from `value` on, through `exchange`, 64 floats private to the simdgroup.
inline void load_values(thread ColumnTiles& values, device const void* v, constant View& view,
                        threadgroup const float* beta, Chunk chunk, int head, int value, threadgroup float* exchange,
                        uint lane) {
  THALWEG_UNROLL
  for (int i = 0; i < kMaxRowTiles; ++i) {
    if (i >= row_tiles()) continue;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int cell = int(lane); cell < 64; cell += 32) {
      const int row = i * 8 + cell / 8;
      const int index = value + cell % 8;
      const bool inside = row < chunk.length && index < kHeadV;
      const float x = inside ? load(v, kType, at(view, chunk.row, chunk.begin + row, head) + index) : 0.0f;
      exchange[cell] = beta[row] * x;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(values.tile[i], exchange);
  }
}

// values = lower values. In place, from the last row of tiles up: row i reads the rows above it.
inline void replace_by_lower_product(thread ColumnTiles& values, threadgroup const float* lower) {
  THALWEG_UNROLL
  for (int i = kMaxRowTiles - 1; i >= 0; --i) {
    if (i >= row_tiles()) continue;
    simdgroup_float8x8 sum = zero_tile();
    THALWEG_UNROLL
    for (int j = 0; j <= i; ++j) {
      simdgroup_float8x8 left;
      simdgroup_load(left, lower + lower_tile(i, j));
      simdgroup_multiply_accumulate(sum, left, values.tile[j], sum);
    }
    values.tile[i] = sum;
  }
}

// Stores outputs + lower values to the rows of the chunk, through `exchange`.
inline void store_outputs(thread ColumnTiles& outputs, threadgroup const float* lower, thread const ColumnTiles& values,
                          device void* o, constant View& view, Chunk chunk, int head, int value,
                          threadgroup float* exchange, uint lane) {
  THALWEG_UNROLL
  for (int i = 0; i < kMaxRowTiles; ++i) {
    if (i * 8 >= chunk.length) continue;
    THALWEG_UNROLL
    for (int j = 0; j <= i; ++j) {
      simdgroup_float8x8 left;
      simdgroup_load(left, lower + lower_tile(i, j));
      simdgroup_multiply_accumulate(outputs.tile[i], left, values.tile[j], outputs.tile[i]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(outputs.tile[i], exchange);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int cell = int(lane); cell < 64; cell += 32) {
      const int row = i * 8 + cell / 8;
      const int index = value + cell % 8;
      if (row >= chunk.length || index >= kHeadV) continue;
      store(o, kOutType, at(view, chunk.row, chunk.begin + row, head) + index, exchange[cell]);
    }
  }
}

[[max_total_threads_per_threadgroup(512)]] kernel void chunk_scan(
    constant ScanParameters& p [[buffer(0)]],
    device const void* q [[buffer(1)]],              // [B,T,HK,K]
    device const void* k [[buffer(2)]],              // [B,T,HK,K]
    device const void* v [[buffer(3)]],              // [B,T,HV,V]
    device const void* q_weight [[buffer(4)]],       // [HK,K]
    device const void* k_weight [[buffer(5)]],       // [HK,K]
    device const void* initial_state [[buffer(6)]],  // [slots,HV,V,K]
    device const int* indices [[buffer(7)]],         // [N]
    device const int* bounds [[buffer(8)]],          // [N+1]
    device const float* records [[buffer(9)]],       // [chunks,HV,kRecordFloats]
    device void* o [[buffer(10)]],                   // [B,T,HV,V]
    device void* final_state [[buffer(11)]],         // like initial_state
    device void* checkpoints [[buffer(12)]],         // [B,checkpoints,HV,V,K]
    device atomic_int* fault [[buffer(13)]],         // [1]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float* lower = scratch;
  threadgroup float* k_rows = lower + kLowerFloats;          // [64][32]
  threadgroup float* q_rows = k_rows + kMaxChunk * kBlock;   // [64][32]
  threadgroup float* factors = q_rows + kMaxChunk * kBlock;  // five [64]
  threadgroup float* exchange = factors + 5 * kMaxChunk + simdgroup * kTileFloats;
  const uint threads = simdgroups * 32;
  const int value = int((group.x * simdgroups + simdgroup) * 8);
  const int head = int(group.y);
  const int n = int(group.z);
  const int kh = key_head(head, p.hk, p.hv);
  const Slot slot = slot_of(indices, n, p.slots);
  if (kHasFault && group.x == 0 && head == 0 && thread_index == 0) {
    const int bits = (slot.valid ? 0 : kBadIndices) | (bounds_are_wrong(p.sequences, bounds, n) ? kBadBounds : 0);
    if (bits != 0) atomic_fetch_or_explicit(fault, bits, memory_order_relaxed);
  }
  if (!slot.valid) return;

  StateTiles state;
  if (kHasInitial && slot.index >= 0) {
    load_state(state, initial_state, p.initial, slot.index, head, value, exchange, lane);
  } else {
    clear(state);
  }
  const int length = sequence_length(p.sequences, bounds, n);
  int checkpoint;  // of the row's checkpoints
  Chunk chunk = first_chunk(p, bounds, n, checkpoint);
  for (int done = 0; done < length && chunk.number < p.chunks; done += kChunk) {
    chunk.begin = sequence_begin(bounds, n) + done;
    chunk.length = min(kChunk, length - done);
    if (kHasStates && done % p.checkpoint_tokens == 0 && checkpoint < p.max_checkpoints) {
      store_state(state, checkpoints, kSnapshotType, p.checkpoints, chunk.row, checkpoint, head, value, exchange, lane);
      ++checkpoint;
    }
    device const float* record = records + (int64_t(chunk.number) * p.hv + head) * kRecordFloats;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_lower(lower, record, chunk, thread_index, threads);
    stage_factors(factors, record, chunk, thread_index, threads);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    ColumnTiles v_new;
    load_values(v_new, v, p.v, factors, chunk, head, value, exchange, lane);
    ColumnTiles outputs;
    clear(outputs);
    for (int column = 0; column < kHeadK; column += kBlock) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage_scaled(k_rows, k, p.k, k_weight, p.k_weight_head, factors + kMaxChunk, chunk, kh, column, thread_index,
                   threads);
      stage_scaled(q_rows, q, p.q, q_weight, p.q_weight_head, factors + 2 * kMaxChunk, chunk, kh, column, thread_index,
                   threads);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_state(v_new, k_rows, column, state);
      multiply_state(outputs, q_rows, column, state);
    }
    replace_by_lower_product(v_new, lower);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_lower(lower, record + kLowerFloats, chunk, thread_index, threads);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_outputs(outputs, lower, v_new, o, p.o, chunk, head, value, exchange, lane);
    for (int column = 0; column < kHeadK; column += kBlock) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage_scaled(k_rows, k, p.k, k_weight, p.k_weight_head, factors + 3 * kMaxChunk, chunk, kh, column, thread_index,
                   threads);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      update_state(state, factors[4 * kMaxChunk], k_rows, column, v_new);
    }
    ++chunk.number;
  }
  if (kHasFinal && slot.index >= 0) {
    store_state(state, final_state, kStateType, p.final, slot.index, 0, head, value, exchange, lane);
  }
}
