// Decode in one launch, for up to eight tokens: convolution and SiLU, norms of q and k, gates, recurrence, gated norm.
// Threadgroup: a sequence and a key head with all its value heads, so that q and k are convolved and normalized once
// and exactly one threadgroup updates each channel of the convolution's state.

#include "metal/kernels/state_rows.h"
#include "metal/kernels/step_output.h"

constant constexpr int kMaxTaps = 8;
constant constexpr int kStepThreads = kStepSimdgroups * 32;

// Convolves one channel for all tokens into result[t * stride] and updates its state.
inline void convolve(threadgroup float* result, int stride, device const void* x, constant StepParameters& p, int batch,
                     int channel, device const void* weight, device void* conv_state, int slot) {
  const int64_t input = batch * p.x.row + channel;
  if (kTaps == 0) {
    for (int t = 0; t < p.sequences.tokens; ++t) result[t * stride] = load(x, kType, input + t * p.x.token);
    return;
  }
  float taps[kMaxTaps];
  float window[kMaxTaps];  // the last inputs, the newest at W - 1
  const int64_t state = slot * p.conv_state.row + channel * p.conv_state.token;
  for (int j = 0; j < kMaxTaps; ++j) {
    taps[j] = j < kTaps ? load(weight, kConvWeightType, channel * p.conv_weight_channel + j) : 0.0f;
    // One index higher than in the state: the first token shifts the window.
    window[j] = j > 0 && j < kTaps && slot >= 0 ? load(conv_state, kConvStateType, state + j - 1) : 0.0f;
  }
  for (int t = 0; t < p.sequences.tokens; ++t) {
    for (int j = 0; j + 1 < kMaxTaps; ++j) {
      if (j + 1 < kTaps) window[j] = window[j + 1];
    }
    const float newest = load(x, kType, input + t * p.x.token);
    float sum = 0.0f;
    for (int j = 0; j < kMaxTaps; ++j) {
      if (j == kTaps - 1) window[j] = newest;
      if (j < kTaps) sum += taps[j] * window[j];
    }
    result[t * stride] = silu(sum);
  }
  if (slot < 0) return;
  for (int j = 1; j < kMaxTaps; ++j) {
    if (j < kTaps) store(conv_state, kConvStateType, state + j - 1, window[j]);
  }
}

[[max_total_threads_per_threadgroup(512)]] kernel void gated_delta_prep_step(
    constant StepParameters& p [[buffer(0)]],
    device const void* x [[buffer(1)]],             // [B,T,2 HK K + HV V]
    device const void* conv_weight [[buffer(2)]],   // [channels,W]
    device void* conv_state [[buffer(3)]],          // [slots,channels,W-1]
    device const void* a [[buffer(4)]],             // [B,T,HV]
    device const void* b [[buffer(5)]],             // [B,T,HV]
    device const void* a_log [[buffer(6)]],         // [HV]
    device const void* dt_bias [[buffer(7)]],       // [HV]
    device const void* q_weight [[buffer(8)]],      // [HK,K]
    device const void* k_weight [[buffer(9)]],      // [HK,K]
    device const void* state_in [[buffer(10)]],     // [slots,HV,V,K]
    device void* state_out [[buffer(11)]],          // like state_in
    device const int* indices [[buffer(12)]],       // [B]
    device void* snapshots [[buffer(13)]],          // [B,T,HV,V,K]
    device const void* z [[buffer(14)]],            // [B,T,HV,V]
    device const void* norm_weight [[buffer(15)]],  // [V]
    device void* y [[buffer(16)]],                  // [B,T,HV,V]
    device atomic_int* fault [[buffer(17)]],        // [1]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float* queries = scratch;                       // [8][K]
  threadgroup float* keys = queries + kStepTokens * kHeadK;   // [8][K]
  threadgroup float* values = keys + kStepTokens * kHeadK;    // [8][V]: v, then o
  threadgroup float* decays = values + kStepTokens * kHeadV;  // [8]
  threadgroup float* betas = decays + kStepTokens;            // [8]
  const int kh = int(group.x);
  const int batch = int(group.y);
  const Slot slot = slot_of(indices, batch, p.slots);
  if (kHasFault && kh == 0 && thread_index == 0 && !slot.valid) {
    atomic_fetch_or_explicit(fault, int(kBadIndices), memory_order_relaxed);
  }
  if (!slot.valid) return;

  for (int i = int(thread_index); i < 2 * kHeadK; i += kStepThreads) {
    const int key = i % kHeadK;
    const bool is_key = i >= kHeadK;
    const int channel = (is_key ? p.hk * kHeadK : 0) + kh * kHeadK + key;
    convolve((is_key ? keys : queries) + key, kHeadK, x, p, batch, channel, conv_weight, conv_state, slot.index);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (int(simdgroup) < 2 * p.sequences.tokens) {
    const int token = int(simdgroup) / 2;
    const bool is_key = simdgroup % 2 == 1;
    normalize_row((is_key ? keys : queries) + token * kHeadK, is_key ? 1.0f : p.scale, p.norm_eps,
                  is_key ? k_weight : q_weight, kh * (is_key ? p.k_weight_head : p.q_weight_head), lane);
  }
  for (int i = 0; i < p.hv / p.hk; ++i) {
    const int head = value_head(kh, i, p.hk, p.hv);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int value = int(thread_index); value < kHeadV; value += kStepThreads) {
      const int channel = 2 * p.hk * kHeadK + head * kHeadV + value;
      convolve(values + value, kHeadV, x, p, batch, channel, conv_weight, conv_state, slot.index);
    }
    if (int(thread_index) < p.sequences.tokens) {
      const Gate gate = gate_at(a, b, a_log, dt_bias, p.gates, batch, int(thread_index), head);
      decays[thread_index] = precise::exp(gate.g);
      betas[thread_index] = gate.beta;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int value = int(simdgroup) * kStepRows; value < kHeadV; value += kStepSimdgroups * kStepRows) {
      StateRows state;
      if (slot.index >= 0) {
        load_rows(state, state_in, p.state_in, slot.index, head, value, lane);
      } else {
        clear(state);
      }
      const bool mine = int(lane) < kStepRows && value + int(lane) < kHeadV;
      for (int t = 0; t < p.sequences.tokens; ++t) {
        threadgroup float* element = values + t * kHeadV + value + int(lane);
        const float out =
            advance(state, queries + t * kHeadK, keys + t * kHeadK, decays[t], betas[t], mine ? *element : 0.0f, lane);
        if (mine) *element = out;
        if (kHasStates) store_rows(state, snapshots, kSnapshotType, p.snapshots, batch, t, head, value, lane);
      }
      if (slot.index >= 0) store_rows(state, state_out, kStateType, p.state_out, slot.index, 0, head, value, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (int(simdgroup) < p.sequences.tokens) {
      write_output(values + simdgroup * kHeadV, p, batch, int(simdgroup), head, z, norm_weight, y, lane);
    }
  }
}
