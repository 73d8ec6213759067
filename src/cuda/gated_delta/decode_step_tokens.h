#pragma once

// What the kernels of the fused step for few tokens take, which tokens a sequence has, and their convolution.

#include <cstdint>

#include "cuda/gated_delta/rule.h"
#include "cuda/gated_delta/token_substitution.h"

namespace thalweg::cu {

constexpr int kDecodeTaps = 4;

// In the order in which kernels read it.
struct DecodeStep {
  Compact<2> x;            // [B,T,2*HK*K + HV*V]
  Compact<2> conv_state;   // [slots,channels,W-1]
  Compact<1> conv_weight;  // [channels,W]
  SlotTable slots;
  int tokens = 1;       // of a row of x
  int most_tokens = 1;  // of a sequence, with those that it replays
  int hk = 0;
  int ratio = 1;  // value heads of a key head
  int v_size = 0;
  int taps = 0;        // 0: no convolution
  int tile_warps = 1;  // warps of a block that hold rows of the state
  int row_blocks = 1;  // blocks of a head
  HeadMap head_map = HeadMap::kGrouped;
  Compact<3> state_in;  // [slots,HV,V,K]
  CompactGateViews gates;
  Compact<3> z;  // [B,T,HV,V]
  Compact<1> norm_weight;
  float scale = 1.0F;
  float norm_eps = 0.0F;
  CompactNormOptions norm;
  Compact<3> state_out;  // may be state_in
  Compact<3> y;
  Compact<4> snapshots;  // [B,T,HV,V,K]
  // With replays and drafts:
  const std::int32_t* cu_seqlens = nullptr;
  const std::int32_t* replay_counts = nullptr;
  int most_replayed = 0;  // R
  bool drafts = false;
  Compact<2> replay_x;  // [slots,R,2*HK*K + HV*V]
  CompactGateViews replay_gates;
  // What launches of the split step hand over, in f32:
  float* keys = nullptr;              // [B,HK,most_tokens,2,K]: q and k after convolution, norm and scale
  float* values = nullptr;            // [B,most_tokens,HV,V]: v after the convolution
  float2* step_gates = nullptr;       // [B,most_tokens,HV]: exp(g) and beta
  TokenMatrices* matrices = nullptr;  // [B,HV], of several tokens
  float* outputs = nullptr;           // [B,most_tokens,HV,V]: of a sequence's own tokens, before their norm

  __device__ int value_head(int key_head, int place) const {
    return head_map == HeadMap::kTiled ? key_head + place * hk : key_head * ratio + place;
  }
};

// The tokens of a sequence: those of a row of x.
struct RowTokens {
  static constexpr bool kReplays = false;

  int row = 0;
  int slot = -1;  // -1: none
  int count = 0;

  // False if the kernel skips the sequence.
  __device__ bool find(const DecodeStep& p, int n) {
    row = n;
    count = p.tokens;
    return find_slot(p.slots, n, slot);
  }
  __device__ int first_own() const { return 0; }
  __device__ bool is_own(int) const { return true; }
  __device__ int place(int t) const { return t; }  // in the row
  __device__ int committed() const { return count; }
  // Token t's input of a channel, for inputs of type X.
  template <class X>
  __device__ X* input(const DecodeStep& p, int t, int channel) const {
    return static_cast<X*>(p.x.data) + p.x.offset(row, 0) + channel + static_cast<std::int64_t>(t) * p.x.strides[1];
  }
  __device__ GateBits read_gate(const DecodeStep& p, int t, int head) const { return p.gates.read(row, t, head); }
};

// Those that it replays, then its own: at most 2 R + 1.
struct ReplayedTokens {
  static constexpr bool kReplays = true;

  int row = 0;
  int slot = -1;  // also of a sequence that the kernel skips for another reason
  int count = 0;
  int begin = 0;  // of its own in the row
  int replayed = 0;
  bool drafts = false;

  __device__ bool find(const DecodeStep& p, int n) {
    const int counted = p.replay_counts[n];
    if (!find_slot(p.slots, n, slot)) {
      slot = -1;
      return false;
    }
    int own = p.tokens;
    if (p.cu_seqlens != nullptr) {
      begin = p.cu_seqlens[n];
      const int end = p.cu_seqlens[n + 1];
      own = end - begin;
      if (begin < 0 || own < 0 || end > p.tokens) return fail(p, kFaultCuSeqlens);
    } else {
      row = n;
    }
    drafts = p.drafts;
    replayed = slot >= 0 ? counted : 0;
    if (replayed < 0 || replayed > p.most_replayed || own > p.most_replayed + 1) return fail(p, kFaultReplays);
    count = replayed + own;
    return true;
  }
  __device__ int first_own() const { return replayed; }
  __device__ bool is_own(int t) const { return t >= replayed; }
  __device__ int place(int t) const { return begin + t - replayed; }
  // Tokens that change the states.
  __device__ int committed() const { return drafts ? min(count, replayed + 1) : count; }
  // Whether the next call may replay it.
  __device__ bool is_draft(int t) const { return drafts && slot >= 0 && t > replayed && t < count; }
  template <class X>
  __device__ X* input(const DecodeStep& p, int t, int channel) const {
    X* const own = static_cast<X*>(p.x.data) + p.x.offset(row, begin - replayed) + channel;
    return is_own(t) ? own + static_cast<std::int64_t>(t) * p.x.strides[1] : replayed_input<X>(p, t, channel);
  }
  template <class X>
  __device__ X* replayed_input(const DecodeStep& p, int t, int channel) const {
    X* const first = static_cast<X*>(p.replay_x.data) + p.replay_x.offset(max(slot, 0), 0) + channel;
    return first + static_cast<std::int64_t>(t) * p.replay_x.strides[1];
  }
  __device__ GateBits read_gate(const DecodeStep& p, int t, int head) const {
    return is_own(t) ? p.gates.read(row, place(t), head) : p.replay_gates.read(slot, t, head);
  }
  // Keeps a draft's gate where the next call replays it.
  __device__ void keep_gate(const DecodeStep& p, int t, int head, const GateBits& bits) const {
    if (!is_draft(t)) return;
    const auto& to = p.replay_gates;
    write_bits(to.a, to.a.offset(slot, t - replayed - 1) + head, bits.a);
    write_bits(to.b, to.b.offset(slot, t - replayed - 1) + head, bits.b);
  }

 private:
  // Writes an element as View::read() returns it.
  template <class View>
  __device__ static void write_bits(const View& to, std::int64_t offset, std::uint32_t bits) {
    if (to.dtype == DType::kF32) {
      static_cast<std::uint32_t*>(to.data)[offset] = bits;
    } else {
      static_cast<std::uint16_t*>(to.data)[offset] = static_cast<std::uint16_t>(bits);
    }
  }
  __device__ static bool fail(const DecodeStep& p, DeviceFault fault) {
    if (threadIdx.x == 0) report(p.slots.fault, fault);
    return false;
  }
};

// The causal convolution of one channel over the tokens; the inputs of the first kTokens are loaded beforehand.
template <int kTokens>
struct ConvChannel {
  std::uint32_t taps[kDecodeTaps];
  std::uint32_t inputs[kDecodeTaps - 1];
  std::uint32_t x[kTokens];
  float window[kDecodeTaps - 1];  // the newest inputs, after prepare()

  // The newest tap and input last; what W lacks of kDecodeTaps is zero.
  __device__ void read(const DecodeStep& p, const RowTokens& tokens, int channel) {
    const int missing = kDecodeTaps - p.taps;
    const bool convolves = p.taps > 0;
    const bool remembers = convolves && tokens.slot >= 0;
    const std::int64_t weights = convolves ? p.conv_weight.offset(channel) - missing : 0;
    const std::int64_t state = remembers ? p.conv_state.offset(tokens.slot, channel) - missing : 0;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) x[t] = t < tokens.count ? p.x.read(p.x.offset(tokens.row, t) + channel) : 0;
#pragma unroll
    for (int i = 0; i + 1 < kDecodeTaps; ++i) {
      inputs[i] = remembers && i >= missing ? p.conv_state.read(state + i) : 0;
    }
#pragma unroll
    for (int i = 0; i < kDecodeTaps; ++i) taps[i] = convolves && i >= missing ? p.conv_weight.read(weights + i) : 0;
  }

  // Calls write(t, value) with the channel's values.
  template <class Write>
  __device__ void prepare(const DecodeStep& p, const RowTokens& tokens, int channel, Write write) {
    float weight[kDecodeTaps];
#pragma unroll
    for (int i = 0; i < kDecodeTaps; ++i) weight[i] = p.conv_weight.convert(taps[i]);
#pragma unroll
    for (int i = 0; i + 1 < kDecodeTaps; ++i) window[i] = p.conv_state.convert(inputs[i]);
    const auto token = [&](int t, std::uint32_t bits) {
      const float input = p.x.convert(bits);
      float value = input;
      if (p.taps > 0) {
        const float sum =
            fmaf(weight[0], window[0], fmaf(weight[1], window[1], fmaf(weight[2], window[2], weight[3] * input)));
        value = sum * sigmoid(sum);
      }
      window[0] = window[1], window[1] = window[2], window[2] = input;
      write(t, value);
    };
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t < tokens.count) token(t, x[t]);
    }
#pragma unroll 1
    for (int t = kTokens; t < tokens.count; ++t) token(t, p.x.read(p.x.offset(tokens.row, t) + channel));
  }

  __device__ void update_state(const DecodeStep& p, int slot, int channel) const {
    const int missing = kDecodeTaps - p.taps;
    const std::int64_t state = p.conv_state.offset(slot, channel) - missing;
#pragma unroll
    for (int i = 0; i + 1 < kDecodeTaps; ++i) {
      if (i >= missing) p.conv_state.store(state + i, window[i]);
    }
  }
};

}  // namespace thalweg::cu
