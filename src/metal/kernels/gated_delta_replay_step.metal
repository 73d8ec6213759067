// Decode in one launch with packed sequences, replays and drafts, for any number of tokens.
//
// Tokens of a sequence: those that it replays, then its own. The first `committed` of them change its states; the
//   others, drafts, go on in registers.
// Threadgroup: a sequence and a key head with all its value heads, as of gated_delta_prep_step. The state of a value
//   head is in registers, all of it, so that it is read and written once; tokens are staged in blocks.
// Threadgroup memory: q, k, v and gates of a block's tokens.
// Barriers: inputs of the convolution and of replays are replaced after one that follows their last read.

#include "metal/kernels/state_rows.h"
#include "metal/kernels/step_output.h"

constant constexpr int kMostStepTaps = 8;
constant constexpr int kReplayThreads = kStepSimdgroups * 32;
constant constexpr int kPassRows = kStepSimdgroups * kStepRows;  // rows of a state that all simdgroups hold at a time
constant constexpr int kMostPasses = kMaxHeadSize / kPassRows;

struct StepTokens {
  int slot;  // -1: none, and nothing is replayed or kept
  int row;   // of x
  int begin;
  int replayed;
  int own;
  int committed;  // of replayed + own
  bool keeps;     // the inputs of drafts replace those that are replayed
  int faults;     // not 0: the sequence is skipped
};

inline StepTokens step_tokens(constant StepParameters& p, device const int* bounds, device const int* indices,
                              device const int* counts, int n) {
  const Slot slot = slot_of(indices, n, p.slots);
  StepTokens tokens;
  tokens.slot = slot.index;
  tokens.row = sequence_row(n);
  tokens.begin = sequence_begin(bounds, n);
  tokens.own = sequence_length(p.sequences, bounds, n);
  tokens.replayed = p.replays && slot.index >= 0 ? counts[n] : 0;
  tokens.committed = tokens.replayed + (p.drafts ? min(tokens.own, 1) : tokens.own);
  tokens.keeps = p.drafts && p.replays && slot.index >= 0;
  tokens.faults =
      (slot.valid ? 0 : int(kBadIndices)) | (bounds_are_wrong(p.sequences, bounds, n) ? int(kBadBounds) : 0);
  if (tokens.replayed < 0 || tokens.replayed > p.most_replayed || (tokens.keeps && tokens.own > p.most_replayed + 1)) {
    tokens.faults |= int(kBadReplays);
  }
  return tokens;
}

struct StepInputs {
  device const void* x;
  device const void* replay_x;
  device const void* conv_weight;
  device const void* conv_state;
};

// Input `i` of a channel: of the tokens from 0 on, below 0 from the convolution's state.
inline float step_input(thread const StepInputs& in, constant StepParameters& p, thread const StepTokens& tokens,
                        int channel, int i) {
  if (i >= tokens.replayed) {
    const int token = tokens.begin + i - tokens.replayed;
    return load(in.x, kType, tokens.row * p.x.row + token * p.x.token + channel);
  }
  if (i >= 0) return load(in.replay_x, kType, tokens.slot * p.replay_x.row + i * p.replay_x.token + channel);
  if (tokens.slot < 0) return 0.0f;
  return load(in.conv_state, kConvStateType,
              tokens.slot * p.conv_state.row + channel * p.conv_state.token + i + kTaps - 1);
}

// Threadgroup memory for the tokens of a block.
struct StepBlock {
  threadgroup float* queries;  // [block][K]
  threadgroup float* keys;     // [block][K]
  threadgroup float* values;   // [block][V]: v, then o
  threadgroup float* decays;   // [block]
  threadgroup float* betas;    // [block]
};

inline StepBlock step_block(threadgroup float* scratch, int block) {
  StepBlock memory;
  memory.queries = scratch;
  memory.keys = memory.queries + block * kHeadK;
  memory.values = memory.keys + block * kHeadK;
  memory.decays = memory.values + block * kHeadV;
  memory.betas = memory.decays + block;
  return memory;
}

// Channel `c` of the 2K of a key head, q before k.
inline int key_channel(constant StepParameters& p, int kh, int c) {
  return (c < kHeadK ? 0 : p.hk * kHeadK) + kh * kHeadK + c % kHeadK;
}
inline int value_channel(constant StepParameters& p, int head, int value) {
  return 2 * p.hk * kHeadK + head * kHeadV + value;
}

// Convolves one channel for `count` tokens from `first` on into result[t * stride].
inline void convolve_tokens(threadgroup float* result, int stride, thread const StepInputs& in,
                            constant StepParameters& p, thread const StepTokens& tokens, int channel, int first,
                            int count) {
  if (kTaps == 0) {
    for (int t = 0; t < count; ++t) result[t * stride] = step_input(in, p, tokens, channel, first + t);
    return;
  }
  float taps[kMostStepTaps];
  float window[kMostStepTaps];  // the last inputs, the newest at W - 1
  THALWEG_UNROLL
  for (int j = 0; j < kMostStepTaps; ++j) {
    taps[j] = j < kTaps ? load(in.conv_weight, kConvWeightType, channel * p.conv_weight_channel + j) : 0.0f;
    // One index higher than before the first token, which shifts the window.
    window[j] = j > 0 && j < kTaps ? step_input(in, p, tokens, channel, first + j - kTaps) : 0.0f;
  }
  for (int t = 0; t < count; ++t) {
    const float newest = step_input(in, p, tokens, channel, first + t);
    float sum = 0.0f;
    THALWEG_UNROLL
    for (int j = 0; j < kMostStepTaps; ++j) {
      if (j + 1 < kTaps) window[j] = window[j + 1 < kMostStepTaps ? j + 1 : j];
      if (j == kTaps - 1) window[j] = newest;
      if (j < kTaps) sum += taps[j] * window[j];
    }
    result[t * stride] = silu(sum);
  }
}

// Stages v of a head for `count` tokens from `first` on and, if required, q and k of its key head.
inline void stage_tokens(StepBlock memory, thread const StepInputs& in, constant StepParameters& p,
                         thread const StepTokens& tokens, bool with_keys, int kh, int head, int first, int count,
                         uint thread_index) {
  for (int c = with_keys ? int(thread_index) : 2 * kHeadK + int(thread_index); c < 2 * kHeadK + kHeadV;
       c += kReplayThreads) {
    const bool is_value = c >= 2 * kHeadK;
    const bool is_key = c >= kHeadK;
    const int column = is_value ? c - 2 * kHeadK : c % kHeadK;
    const int channel = is_value ? value_channel(p, head, column) : key_channel(p, kh, c);
    threadgroup float* to = is_value ? memory.values : (is_key ? memory.keys : memory.queries);
    convolve_tokens(to + column, is_value ? kHeadV : kHeadK, in, p, tokens, channel, first, count);
  }
}

// Normalizes the rows of q and k. Called by all simdgroups.
inline void normalize_tokens(StepBlock memory, constant StepParameters& p, device const void* q_weight,
                             device const void* k_weight, int kh, int count, uint simdgroup, uint lane) {
  for (int row = int(simdgroup); row < 2 * count; row += int(kStepSimdgroups)) {
    const bool is_key = row % 2 == 1;
    normalize_row((is_key ? memory.keys : memory.queries) + row / 2 * kHeadK, is_key ? 1.0f : p.scale, p.norm_eps,
                  is_key ? k_weight : q_weight, kh * (is_key ? p.k_weight_head : p.q_weight_head), lane);
  }
}

// Replaces one channel's state by the last W-1 inputs that are committed, then keeps the drafts' inputs.
inline void finish_channel(thread const StepInputs& in, constant StepParameters& p, thread const StepTokens& tokens,
                           int channel, device void* conv_state, device void* replay_x) {
  if (kTaps > 0) {
    float window[kMostStepTaps];
    THALWEG_UNROLL
    for (int j = 0; j < kMostStepTaps; ++j) {
      if (j + 1 < kTaps) window[j] = step_input(in, p, tokens, channel, tokens.committed + j - kTaps + 1);
    }
    const int64_t to = tokens.slot * p.conv_state.row + channel * p.conv_state.token;
    THALWEG_UNROLL
    for (int j = 0; j < kMostStepTaps; ++j) {
      if (j + 1 < kTaps) store(conv_state, kConvStateType, to + j, window[j]);
    }
  }
  if (!tokens.keeps) return;
  for (int t = 0; t + 1 < tokens.own; ++t) {
    store(replay_x, kType, tokens.slot * p.replay_x.row + t * p.replay_x.token + channel,
          step_input(in, p, tokens, channel, tokens.replayed + 1 + t));
  }
}

// The same for all channels of a key head and its value heads.
inline void finish_channels(thread const StepInputs& in, constant StepParameters& p, thread const StepTokens& tokens,
                            int kh, device void* conv_state, device void* replay_x, uint thread_index) {
  for (int c = int(thread_index); c < 2 * kHeadK + p.hv / p.hk * kHeadV; c += kReplayThreads) {
    const int v = c - 2 * kHeadK;
    finish_channel(in, p, tokens,
                   v < 0 ? key_channel(p, kh, c) : value_channel(p, value_head(kh, v / kHeadV, p.hk, p.hv), v % kHeadV),
                   conv_state, replay_x);
  }
}

// Keeps the gates of drafts, all tokens but the first, as those that are replayed.
inline void keep_gates(device void* to, constant View& to_view, device const void* from, constant View& from_view,
                       constant StepParameters& p, thread const StepTokens& tokens, int kh, uint thread_index) {
  const int ratio = p.hv / p.hk;
  for (int j = int(thread_index); j < (tokens.own - 1) * ratio; j += kReplayThreads) {
    const int head = value_head(kh, j % ratio, p.hk, p.hv);
    const int t = j / ratio;
    store(to, kGateType, at(to_view, tokens.slot, t, head),
          load(from, kGateType, at(from_view, tokens.row, tokens.begin + 1 + t, head)));
  }
}

struct HeadState {
  StateRows pass[kMostPasses];
};

inline int pass_value(int pass, uint simdgroup) { return pass * kPassRows + int(simdgroup) * kStepRows; }

inline void load_head(thread HeadState& state, device const void* data, constant StepParameters& p, int slot, int head,
                      uint simdgroup, uint lane) {
  THALWEG_UNROLL
  for (int i = 0; i < kMostPasses; ++i) {
    clear(state.pass[i]);
    const int value = pass_value(i, simdgroup);
    if (slot >= 0 && value < kHeadV) load_rows(state.pass[i], data, p.state_in, slot, head, value, lane);
  }
}

inline void store_head(thread const HeadState& state, device void* data, int type, constant StateView& view, int slot,
                       int token, int head, uint simdgroup, uint lane) {
  THALWEG_UNROLL
  for (int i = 0; i < kMostPasses; ++i) {
    const int value = pass_value(i, simdgroup);
    if (value < kHeadV) store_rows(state.pass[i], data, type, view, slot, token, head, value, lane);
  }
}

// One token of a head: row [V] holds v, then the output.
inline void advance_head(thread HeadState& state, threadgroup const float* query, threadgroup const float* key,
                         threadgroup float* row, float decay, float beta, uint simdgroup, uint lane) {
  THALWEG_UNROLL
  for (int i = 0; i < kMostPasses; ++i) {
    const int value = pass_value(i, simdgroup);
    if (value >= kHeadV) continue;
    const bool mine = int(lane) < kStepRows && value + int(lane) < kHeadV;
    threadgroup float* element = row + value + int(lane);
    const float out = advance(state.pass[i], query, key, decay, beta, mine ? *element : 0.0f, lane);
    if (mine) *element = out;
  }
}

[[max_total_threads_per_threadgroup(512)]] kernel void gated_delta_replay_step(
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
    device const int* indices [[buffer(12)]],       // [N]
    device void* snapshots [[buffer(13)]],          // [B,T,HV,V,K]
    device const void* z [[buffer(14)]],            // [B,T,HV,V]
    device const void* norm_weight [[buffer(15)]],  // [V]
    device void* y [[buffer(16)]],                  // [B,T,HV,V]
    device atomic_int* fault [[buffer(17)]],        // [1]
    device const int* bounds [[buffer(18)]],        // [N+1]
    device void* replay_x [[buffer(19)]],           // [slots,R,channels]
    device void* replay_a [[buffer(20)]],           // [slots,R,HV]
    device void* replay_b [[buffer(21)]],           // [slots,R,HV]
    device const int* counts [[buffer(22)]],        // [N]
    threadgroup float* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int block = p.staged_tokens;
  const StepBlock memory = step_block(scratch, block);
  const int kh = int(group.x);
  const StepTokens tokens = step_tokens(p, bounds, indices, counts, int(group.y));
  if (kHasFault && kh == 0 && thread_index == 0 && tokens.faults != 0) {
    atomic_fetch_or_explicit(fault, tokens.faults, memory_order_relaxed);
  }
  if (tokens.faults != 0) return;
  StepInputs in;
  in.x = x;
  in.replay_x = replay_x;
  in.conv_weight = conv_weight;
  in.conv_state = conv_state;
  const int all = tokens.replayed + tokens.own;

  for (int i = 0; i < p.hv / p.hk; ++i) {
    const int head = value_head(kh, i, p.hk, p.hv);
    HeadState state;
    load_head(state, state_in, p, tokens.slot, head, simdgroup, lane);
    if (all == 0 && tokens.slot >= 0) {
      store_head(state, state_out, kStateType, p.state_out, tokens.slot, 0, head, simdgroup, lane);
    }
    for (int first = 0; first < all; first += block) {
      const int count = min(block, all - first);
      const bool prepares_keys = i == 0 || all > block;  // otherwise they are those of the head before
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage_tokens(memory, in, p, tokens, prepares_keys, kh, head, first, count, thread_index);
      if (int(thread_index) < count) {
        const int t = first + int(thread_index);
        const bool own = t >= tokens.replayed;
        const Gate gate =
            own ? gate_at(a, b, a_log, dt_bias, p.gates, tokens.row, tokens.begin + t - tokens.replayed, head)
                : gate_at(replay_a, replay_b, a_log, dt_bias, p.replay_gates, tokens.slot, t, head);
        memory.decays[thread_index] = precise::exp(gate.g);
        memory.betas[thread_index] = gate.beta;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (prepares_keys) {
        normalize_tokens(memory, p, q_weight, k_weight, kh, count, simdgroup, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      for (int t = 0; t < count; ++t) {
        advance_head(state, memory.queries + t * kHeadK, memory.keys + t * kHeadK, memory.values + t * kHeadV,
                     memory.decays[t], memory.betas[t], simdgroup, lane);
        if (first + t + 1 == tokens.committed && tokens.slot >= 0) {
          store_head(state, state_out, kStateType, p.state_out, tokens.slot, 0, head, simdgroup, lane);
        }
        if (kHasStates) {  // never together with replays
          store_head(state, snapshots, kSnapshotType, p.snapshots, tokens.row, tokens.begin + first + t, head,
                     simdgroup, lane);
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int t = max(0, tokens.replayed - first) + int(simdgroup); t < count; t += int(kStepSimdgroups)) {
        const int token = tokens.begin + first + t - tokens.replayed;
        write_output(memory.values + t * kHeadV, p, tokens.row, token, head, z, norm_weight, y, lane);
      }
    }
  }
  if (all == 0 || tokens.slot < 0) return;

  threadgroup_barrier(mem_flags::mem_device);  // the inputs have been read
  finish_channels(in, p, tokens, kh, conv_state, replay_x, thread_index);
  if (!tokens.keeps) return;
  keep_gates(replay_a, p.replay_gates.g, a, p.gates.g, p, tokens, kh, thread_index);
  keep_gates(replay_b, p.replay_gates.beta, b, p.gates.beta, p, tokens, kh, thread_index);
}
