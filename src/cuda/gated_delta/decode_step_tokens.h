#pragma once

// What the kernels of the fused step for few tokens take, which tokens a sequence has, and their convolution.

#include <cstdint>

#include "cuda/gated_delta/rule.h"

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
  int stages = 1;      // stream_step: states of heads in shared memory
  int key_heads = 0;   // stream_step: of all sequences
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
};

// One channel of the rows of a matrix, as bits.
struct ChannelRows {
  char* data;
  std::int64_t stride;  // in bytes
  bool wide;            // 32 bits, else 16

  __device__ ChannelRows(const Compact<2>& matrix, std::int64_t offset) : wide(matrix.dtype == DType::kF32) {
    const int bytes = wide ? 4 : 2;
    data = static_cast<char*>(matrix.data) + offset * bytes;
    stride = static_cast<std::int64_t>(matrix.strides[1]) * bytes;
  }
  __device__ std::uint32_t read(int row) const {
    const char* const at = data + row * stride;
    return wide ? *reinterpret_cast<const std::uint32_t*>(at) : *reinterpret_cast<const std::uint16_t*>(at);
  }
  __device__ void write(int row, std::uint32_t bits) const {
    char* const at = data + row * stride;
    if (wide) *reinterpret_cast<std::uint32_t*>(at) = bits;
    if (!wide) *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(bits);
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
  // Reads a channel's first kTokens inputs, 0 beyond the last token.
  template <int kTokens>
  __device__ void read_x(const DecodeStep& p, int channel, std::uint32_t (&x)[kTokens]) const {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) x[t] = t < count ? p.x.read(p.x.offset(row, t) + channel) : 0;
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
  template <int kTokens>
  __device__ void read_x(const DecodeStep& p, int channel, std::uint32_t (&x)[kTokens]) const {
    const ChannelRows own(p.x, p.x.offset(row, begin - replayed) + channel);
    const ChannelRows before(p.replay_x, p.replay_x.offset(max(slot, 0), 0) + channel);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) x[t] = t < count ? (is_own(t) ? own : before).read(t) : 0;
  }
  __device__ GateBits read_gate(const DecodeStep& p, int t, int head) const {
    return is_own(t) ? p.gates.read(row, place(t), head) : p.replay_gates.read(slot, t, head);
  }
  // Keeps a draft's gate where the next call replays it.
  __device__ void keep_gate(const DecodeStep& p, int t, int head, const GateBits& bits) const {
    if (!is_draft(t)) return;
    const auto& to = p.replay_gates;
    ChannelRows(to.a, to.a.offset(slot, t - replayed - 1) + head).write(0, bits.a);
    ChannelRows(to.b, to.b.offset(slot, t - replayed - 1) + head).write(0, bits.b);
  }

 private:
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
  float window[kDecodeTaps - 1];  // the newest committed inputs, after prepare()

  // The newest tap and input last; what W lacks of kDecodeTaps is zero.
  template <class Sequence>
  __device__ void read(const DecodeStep& p, const Sequence& tokens, int channel) {
    const int missing = kDecodeTaps - p.taps;
    const bool convolves = p.taps > 0;
    const bool remembers = convolves && tokens.slot >= 0;
    const std::int64_t weights = convolves ? p.conv_weight.offset(channel) - missing : 0;
    const std::int64_t state = remembers ? p.conv_state.offset(tokens.slot, channel) - missing : 0;
    tokens.read_x(p, channel, x);
#pragma unroll
    for (int i = 0; i + 1 < kDecodeTaps; ++i) {
      inputs[i] = remembers && i >= missing ? p.conv_state.read(state + i) : 0;
    }
#pragma unroll
    for (int i = 0; i < kDecodeTaps; ++i) taps[i] = convolves && i >= missing ? p.conv_weight.read(weights + i) : 0;
  }

  // Calls write(t, value) with the channel's values, of which token t's is stored to to[t * pitch].
  template <class Sequence, class Write>
  __device__ void prepare(const DecodeStep& p, const Sequence& tokens, int channel, float* to, int pitch, Write write) {
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
    if constexpr (Sequence::kReplays) {
      // A loop over registers is unrolled, here beyond the cache of instructions. This one goes over shared memory,
      // where values replace inputs.
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (t < tokens.count) to[t * pitch] = __uint_as_float(x[t]);
      }
      float kept[kDecodeTaps - 1] = {window[0], window[1], window[2]};
      const int committed = tokens.committed();
#pragma unroll 1
      for (int t = 0; t < tokens.count; ++t) {
        token(t, __float_as_uint(to[t * pitch]));
        if (t < committed) kept[0] = window[0], kept[1] = window[1], kept[2] = window[2];
      }
      window[0] = kept[0], window[1] = kept[1], window[2] = kept[2];
    } else {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (t < tokens.count) token(t, x[t]);
      }
#pragma unroll 1
      for (int t = kTokens; t < tokens.count; ++t) token(t, p.x.read(p.x.offset(tokens.row, t) + channel));
    }
  }

  __device__ void update_state(const DecodeStep& p, int slot, int channel) const {
    const int missing = kDecodeTaps - p.taps;
    const std::int64_t state = p.conv_state.offset(slot, channel) - missing;
#pragma unroll
    for (int i = 0; i + 1 < kDecodeTaps; ++i) {
      if (i >= missing) p.conv_state.store(state + i, window[i]);
    }
  }

  // Keeps the drafts' inputs where the next call replays them.
  __device__ void keep_drafts(const DecodeStep& p, const ReplayedTokens& tokens, int channel) const {
    const ChannelRows to(p.replay_x, p.replay_x.offset(max(tokens.slot, 0), 0) + channel);
#pragma unroll
    for (int t = 1; t < kTokens; ++t) {
      if (tokens.is_draft(t)) to.write(t - tokens.replayed - 1, x[t]);
    }
  }
};

}  // namespace thalweg::cu
