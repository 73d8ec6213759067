// The recurrence token by token. Threadgroup: a sequence, a value head and 32 rows of its state. Keys and queries are
// staged for eight tokens at a time, one simdgroup per token.

#include "metal/kernels/state_rows.h"

[[max_total_threads_per_threadgroup(256)]] kernel void recurrent_gated_delta_rule(
    constant RecurrentParameters& p [[buffer(0)]],
    device const void* q [[buffer(1)]],               // [B,T,HK,K]
    device const void* k [[buffer(2)]],               // [B,T,HK,K]
    device const void* v [[buffer(3)]],               // [B,T,HV,V]
    device const void* g [[buffer(4)]],               // [B,T,HV], or a
    device const void* beta [[buffer(5)]],            // [B,T,HV], or b
    device const void* a_log [[buffer(6)]],           // [HV]
    device const void* dt_bias [[buffer(7)]],         // [HV]
    device const void* q_weight [[buffer(8)]],        // [HK,K]
    device const void* k_weight [[buffer(9)]],        // [HK,K]
    device const void* initial_state [[buffer(10)]],  // [slots,HV,V,K]
    device const int* indices [[buffer(11)]],         // [N]
    device const int* bounds [[buffer(12)]],          // [N+1]
    device void* o [[buffer(13)]],                    // [B,T,HV,V]
    device void* final_state [[buffer(14)]],          // like initial_state
    device void* snapshots [[buffer(15)]],            // [B,T,HV,V,K]
    device atomic_int* fault [[buffer(16)]],          // [1]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float* queries = scratch;                      // [8][K]
  threadgroup float* keys = queries + kStepTokens * kHeadK;  // [8][K]
  threadgroup float* decays = keys + kStepTokens * kHeadK;   // [8]
  threadgroup float* betas = decays + kStepTokens;           // [8]
  const int value = int(group.x) * kRecurrentSimdgroups * kStepRows + int(simdgroup) * kStepRows;
  const int head = int(group.y);
  const int n = int(group.z);
  const int kh = key_head(head, p.hk, p.hv);
  const int row = sequence_row(n);
  const Slot slot = slot_of(indices, n, p.slots);
  if (kHasFault && group.x == 0 && head == 0 && thread_index == 0) {
    const int bits = (slot.valid ? 0 : kBadIndices) | (bounds_are_wrong(p.sequences, bounds, n) ? kBadBounds : 0);
    if (bits != 0) atomic_fetch_or_explicit(fault, bits, memory_order_relaxed);
  }
  if (!slot.valid) return;

  StateRows state;
  if (kHasInitial && slot.index >= 0) {
    load_rows(state, initial_state, p.initial, slot.index, head, value, lane);
  } else {
    clear(state);
  }
  const int length = sequence_length(p.sequences, bounds, n);
  const int begin = sequence_begin(bounds, n);
  for (int done = 0; done < length; done += kStepTokens) {
    const int tokens = min(int(kStepTokens), length - done);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (int(simdgroup) < tokens) {
      const int token = begin + done + int(simdgroup);
      threadgroup float* query = queries + int(simdgroup) * kHeadK;
      threadgroup float* key = keys + int(simdgroup) * kHeadK;
      for (int i = int(lane); i < kHeadK; i += 32) {
        query[i] = load(q, kType, at(p.q, row, token, kh) + i);
        key[i] = load(k, kType, at(p.k, row, token, kh) + i);
      }
      normalize_row(query, p.scale, p.norm_eps, q_weight, kh * p.q_weight_head, lane);
      normalize_row(key, 1.0f, p.norm_eps, k_weight, kh * p.k_weight_head, lane);
      if (lane == 0) {
        const Gate gate = gate_at(g, beta, a_log, dt_bias, p.gates, row, token, head);
        decays[simdgroup] = precise::exp(gate.g);
        betas[simdgroup] = gate.beta;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int t = 0; t < tokens; ++t) {
      const int token = begin + done + t;
      const bool mine = int(lane) < kStepRows && value + int(lane) < kHeadV;
      const float x = mine ? load(v, kType, at(p.v, row, token, head) + value + int(lane)) : 0.0f;
      const float out = advance(state, queries + t * kHeadK, keys + t * kHeadK, decays[t], betas[t], x, lane);
      if (mine) store(o, kOutType, at(p.o, row, token, head) + value + int(lane), out);
      if (kHasStates) store_rows(state, snapshots, kSnapshotType, p.snapshots, row, token, head, value, lane);
    }
  }
  if (kHasFinal && slot.index >= 0)
    store_rows(state, final_state, kStateType, p.final, slot.index, 0, head, value, lane);
}
