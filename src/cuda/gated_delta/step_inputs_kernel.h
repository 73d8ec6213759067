#pragma once

// The first launch of the fused step for many sequences: q, k, v and gates of all tokens.
//
// Roles: a lane convolves four channels over up to four tokens. A head of q or k is K / 4 lanes of a warp, which sum
//   for a token's norm. The first lanes of a sequence have a gate each.
// Pipeline: all loads of a lane precede its arithmetic. The next launch (step_one_kernel.h, step_states_kernel.h)
//   begins as soon as it fits beside this one, and loads its states.
// Barriers: one in a block, whose lanes alone read the inputs that they replace.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode_step_tokens.h"
#include "cuda/gated_delta/token_products.h"

namespace thalweg::cu {

constexpr int kStepInputsThreads = 128;
constexpr int kStepInputsTokens = 4;  // of a lane

// The convolution of four channels over kTokens tokens from `first` on.
template <int kTokens, class X>
struct ConvFour {
  static constexpr int kWindow = kDecodeTaps - 1;
  using Bits = std::conditional_t<sizeof(X) == 4, uint4, uint2>;

  const int first;
  Bits x[kTokens];
  uint4 taps[4];          // of a channel, as bits of their type
  uint4 inputs[kWindow];  // [4,kWindow], if `first` is 0
  Bits before[kWindow];   // inputs of the tokens before `first`, if it is not
  float weight[4][kDecodeTaps];
  float window[4][kWindow];  // the newest inputs

  template <class Sequence>
  __device__ void read(const DecodeStep& p, const Sequence& tokens, int channel) {
    const auto input = [&](int t) { return *reinterpret_cast<const Bits*>(tokens.template input<X>(p, t, channel)); };
    const bool convolves = p.taps > 0;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (first + i < tokens.count) x[i] = input(first + i);
    }
    if (first == 0) {
#pragma unroll
      for (int i = 0; i < kWindow; ++i) inputs[i] = {};
      if (convolves && tokens.slot >= 0) {
        with_type(p.conv_state.dtype, [&]<class S>(S) {
          const S* const from = static_cast<const S*>(p.conv_state.data) + p.conv_state.offset(tokens.slot, channel);
#pragma unroll
          for (int i = 0; i < kWindow; ++i) inputs[i] = load_raw_four(from + 4 * i);
        });
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWindow; ++i) {
        if (first < tokens.count) before[i] = input(first - kWindow + i);
      }
    }
    if (!convolves) return;
    with_type(p.conv_weight.dtype, [&]<class W>(W) {
      const W* const from = static_cast<const W*>(p.conv_weight.data) + p.conv_weight.offset(channel);
#pragma unroll
      for (int i = 0; i < 4; ++i) taps[i] = load_raw_four(from + kDecodeTaps * i);
    });
  }
  __device__ void begin(const DecodeStep& p) {
    with_type(p.conv_weight.dtype, [&]<class W>(W) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 four = load_four(reinterpret_cast<const W*>(&taps[i]));
        weight[i][0] = four.x, weight[i][1] = four.y, weight[i][2] = four.z, weight[i][3] = four.w;
      }
    });
    if (first == 0) {
      with_type(p.conv_state.dtype, [&]<class S>(S) {
#pragma unroll
        for (int i = 0; i < kWindow; ++i) {
          const float4 four = load_four(reinterpret_cast<const S*>(&inputs[i]));
          const auto element = [&](int j) -> float& { return window[(4 * i + j) / kWindow][(4 * i + j) % kWindow]; };
          element(0) = four.x, element(1) = four.y, element(2) = four.z, element(3) = four.w;
        }
      });
    } else {
#pragma unroll
      for (int j = 0; j < kWindow; ++j) {
        const float4 four = load_four(reinterpret_cast<const X*>(&before[j]));
        window[0][j] = four.x, window[1][j] = four.y, window[2][j] = four.z, window[3][j] = four.w;
      }
    }
  }
  // The values of token first + n, after those of the tokens before it.
  __device__ void next(const DecodeStep& p, int n, float (&values)[4]) {
    const float4 four = load_four(reinterpret_cast<const X*>(&x[n]));
    const float input[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = input[i];
    if (p.taps > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = weight[i][kWindow] * input[i];
#pragma unroll
        for (int j = kWindow - 1; j >= 0; --j) sum = fmaf(weight[i][j], window[i][j], sum);
        values[i] = sum * sigmoid(sum);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < kWindow; ++j) window[i][j] = window[i][j + 1];
      window[i][kWindow - 1] = input[i];
    }
  }
};

// Writes inputs, [4,3], to conv_state.
template <int kWindow>
__device__ inline void write_window(const DecodeStep& p, int slot, int channel, const float (&window)[4][kWindow]) {
  with_type(p.conv_state.dtype, [&]<class S>(S) {
    S* const to = static_cast<S*>(p.conv_state.data) + p.conv_state.offset(slot, channel);
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      const auto element = [&](int j) { return window[(4 * i + j) / kWindow][(4 * i + j) % kWindow]; };
      store_four(to + 4 * i, {element(0), element(1), element(2), element(3)});
    }
  });
}

// Channels of a block.
template <int kTokens>
constexpr int kStepInputsChannels = 4 * kStepInputsThreads / (kTokens == 1 ? 1 : kTokens / kStepInputsTokens);

// Blocks of a sequence along x, sequences along y. At most kTokens tokens of a sequence, those that it replays
// included: 1, or kTogether, of which the second half of a block has the second half. Contiguous convolutions of
// kDecodeTaps taps, or none; V is a multiple of 128.
template <int kK, int kTokens, class X, class Sequence>
__global__ void __launch_bounds__(kStepInputsThreads, kTokens == 1 ? 8 : 5)
    step_inputs(const __grid_constant__ DecodeStep p) {
  constexpr int kLaneTokens = kTokens == 1 ? 1 : kStepInputsTokens;
  constexpr int kBlockLanes = kStepInputsThreads * kLaneTokens / kTokens;  // with other channels
  constexpr int kLanes = kK / 4;                                           // of a head
  using Conv = ConvFour<kLaneTokens, X>;
  pdl_wait();
  pdl_trigger();
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const int number = static_cast<int>(blockIdx.y);
  const int channel = 4 * (block * kBlockLanes + thread % kBlockLanes);
  Sequence tokens;
  if (!tokens.find(p, number)) return;
  Conv conv{thread / kBlockLanes * kLaneTokens};
  const bool has_channel = channel < p.channels && (conv.first == 0 || conv.first < tokens.count);
  if (has_channel) conv.read(p, tokens, channel);
  const bool is_q = channel < p.hk * kK;
  const bool is_key = channel < 2 * p.hk * kK;  // q or k; the same for the warp
  float norm_weight[4] = {1.0F, 1.0F, 1.0F, 1.0F};
  if (p.norm.norm == QkNorm::kRms && is_key) {
    const auto& weights = is_q ? p.norm.q_weight : p.norm.k_weight;
    const std::int64_t at = weights.offset(channel / kK % p.hk) + channel % kK;
#pragma unroll
    for (int i = 0; i < 4; ++i) norm_weight[i] = weights.load(at + i);
  }

  // Of a head and a token. The lanes of one head are in one warp.
  const int gate = block * kStepInputsThreads + thread;
  const int head = gate / kTokens;
  const int gate_token = gate % kTokens;
  const bool has_gate = head < p.hk * p.ratio && gate_token < tokens.count;
  GateBits gate_bits{};
  if (has_gate) gate_bits = tokens.read_gate(p, gate_token, head);

  float committed[4][Conv::kWindow];
  const int last_committed = tokens.committed() - 1;
  const bool commits = has_channel && last_committed >= conv.first && last_committed < conv.first + kLaneTokens;
  if (has_channel) {
    conv.begin(p);
    const std::int64_t row = static_cast<std::int64_t>(number) * p.most_tokens + conv.first;
    float* to = p.inputs + row * p.channels + channel;
#pragma unroll
    for (int n = 0; n < kLaneTokens; ++n) {
      if (conv.first + n >= tokens.count) break;
      float values[4];
      conv.next(p, n, values);
      if (conv.first + n == last_committed) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < Conv::kWindow; ++j) committed[i][j] = conv.window[i][j];
        }
      }
      float factor = is_q ? p.scale : 1.0F;
      if (p.norm.norm != QkNorm::kNone && is_key) {
        const float squares =
            values[0] * values[0] + values[1] * values[1] + (values[2] * values[2] + values[3] * values[3]);
        factor *= p.norm.factor(warp_sum<kLanes>(squares), kK);
      }
      *reinterpret_cast<float4*>(to) = {values[0] * (norm_weight[0] * factor), values[1] * (norm_weight[1] * factor),
                                        values[2] * (norm_weight[2] * factor), values[3] * (norm_weight[3] * factor)};
      to += p.channels;
    }
  }
  if (has_gate) {
    const Gate computed = p.gates.compute(gate_bits);
    const std::int64_t row = static_cast<std::int64_t>(number) * p.most_tokens + gate_token;
    p.step_gates[row * p.hk * p.ratio + head] = {expf(computed.g), computed.beta};
  }
  if (kTokens > 1) __syncthreads();  // what is replaced below has been read
  if (commits && p.taps > 0 && tokens.slot >= 0) write_window(p, tokens.slot, channel, committed);
  if constexpr (Sequence::kReplays) {
    if (has_gate) tokens.keep_gate(p, gate_token, head, gate_bits);
#pragma unroll
    for (int n = 0; n < kLaneTokens; ++n) {
      const int t = conv.first + n;
      if (!has_channel || !tokens.is_draft(t)) continue;
      X* const kept = tokens.template replayed_input<X>(p, t - tokens.replayed - 1, channel);
      *reinterpret_cast<typename Conv::Bits*>(kept) = conv.x[n];
    }
  }
}

}  // namespace thalweg::cu
