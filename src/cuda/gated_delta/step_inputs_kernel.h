#pragma once

// The first launch of the fused step for many sequences: q, k, v and gates of all tokens.
//
// Roles: a lane convolves four channels over up to eight tokens. A head of q or k is K / 4 lanes of a warp, which sum
//   for a token's norm. The first lanes of blocks with q and k have a gate each; of several tokens the warps of these
//   blocks then compute the matrices of the value heads (token_substitution.h).
// Pipeline: all loads of a lane precede its arithmetic. The next launch (step_one_kernel.h, step_states_kernel.h)
//   begins as soon as it fits beside this one, and loads its states.
// Barriers: of several tokens one, as the lanes of a block alone read the inputs that they replace, and one more before
//   the matrices.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode_step_tokens.h"
#include "cuda/gated_delta/token_substitution.h"

namespace thalweg::cu {

// kTokens: of a sequence, 1 or kTogether. With matrices sequences are many, and lanes have all tokens: the fewest
// instructions; without them several tokens are shared by two lanes: the lowest latency.
template <int kTokens, bool kMatrices>
struct StepInputsShape {
  static constexpr int kLaneTokens = kTokens == 1 || kMatrices ? kTokens : kTokens / 2;
  static constexpr int kLanes = kTokens == 1 ? 128 : 64;  // of a block, with other channels
  static constexpr int kThreads = kLanes * kTokens / kLaneTokens;
  static constexpr int kChannels = 4 * kLanes;  // half of them of q and half of k of the same key heads, or all of v
  static constexpr int kBlocks = kTokens == 1 ? 8 : kMatrices ? 10 : 5;  // of a multiprocessor
};

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

  // Four neighbors as they are in memory. Both types of loads fill the same registers, so that none is waited for.
  template <class View>
  __device__ static uint4 read_four(const View& from, std::int64_t offset) {
    const bool is_f32 = from.dtype == DType::kF32;
    const auto* const bits = static_cast<const char*>(from.data) + offset * (is_f32 ? 4 : 2);
    const uint2 low = *reinterpret_cast<const uint2*>(bits);
    uint2 high{};
    if (is_f32) high = *reinterpret_cast<const uint2*>(bits + sizeof(low));
    return {low.x, low.y, high.x, high.y};
  }
  template <class Sequence>
  __device__ void read(const DecodeStep& p, const Sequence& tokens, int channel) {
    const auto input = [&](int t) { return *reinterpret_cast<const Bits*>(tokens.template input<X>(p, t, channel)); };
    const bool convolves = p.taps > 0;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (first + i < tokens.count) x[i] = input(first + i);
    }
    if (convolves) {
      const auto at = p.conv_weight.offset(channel);
#pragma unroll
      for (int i = 0; i < 4; ++i) taps[i] = read_four(p.conv_weight, at + kDecodeTaps * i);
    }
    if (first == 0) {
#pragma unroll
      for (int i = 0; i < kWindow; ++i) inputs[i] = {};
      if (convolves && tokens.slot >= 0) {
        const auto at = p.conv_state.offset(tokens.slot, channel);
#pragma unroll
        for (int i = 0; i < kWindow; ++i) inputs[i] = read_four(p.conv_state, at + 4 * i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWindow; ++i) {
        if (first < tokens.count) before[i] = input(first - kWindow + i);
      }
    }
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

// What a block of several tokens shares: q and k of its key heads after the norm, and what becomes the matrices of
// their value heads.
template <int kK>
struct StepInputsShared {
  using Shape = StepInputsShape<kTogether, true>;
  static constexpr int kWidth = Shape::kChannels / 2;  // of q, and of k
  static constexpr int kHeads = kWidth / kK;
  static constexpr int kPitch = kWidth + 16;  // no two neighboring rows in the same banks

  float rows[2][kTogether * kPitch];  // q, k
  TokenSquare with_q[kHeads];         // products with k
  TokenSquare with_k[kHeads];
  TokenGates gates[kHeads * kStepMostRatio<kK>];
  MatrixScratch scratch[Shape::kThreads / kWarpSize];
};

// Computes the matrices of the block's value heads from rows and gates; all threads call it.
template <int kK, class Sequence>
__device__ inline void store_matrices(const DecodeStep& p, const Sequence& tokens, int number, int first_key_head,
                                      StepInputsShared<kK>& shared) {
  using Shared = StepInputsShared<kK>;
  constexpr int kWarps = Shared::Shape::kThreads / kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
#pragma unroll 1
  for (int i = warp; i < Shared::kHeads * kTogether; i += kWarps) {
    const int t = i % kTogether;
    const int head = i / kTogether;
    if (t >= tokens.count) continue;
    multiply_rows<kK>(shared.rows[0] + head * kK, shared.rows[1] + head * kK, Shared::kPitch, t, shared.with_q[head],
                      shared.with_k[head]);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = warp; i < Shared::kHeads * p.ratio; i += kWarps) {
    const int head = i / p.ratio;
    if (first_key_head + head >= p.hk) continue;
    const std::int64_t to =
        static_cast<std::int64_t>(number) * p.hk * p.ratio + p.value_head(first_key_head + head, i % p.ratio);
    find_decays(shared.gates[i], tokens.count, p.matrices[to].decays);
    find_matrices(shared.with_k[head], shared.with_q[head], shared.gates[i], tokens.count, tokens.committed(),
                  shared.scratch[warp], p.matrices[to]);
    __syncwarp();  // the scratch memory is free
  }
}

// The four channels of a lane. Blocks of q and k come first.
template <int kK, class Shape>
struct LaneChannels {
  static constexpr int kKeyWidth = Shape::kChannels / 2;  // of q, and of k, in a block

  bool is_key;  // q or k; the same for a block
  bool is_q;    // the same for a warp
  int column;   // within q, k or v
  int channel;
  int shared_column;   // among the block's of q or k
  int first_key_head;  // of the block

  __device__ LaneChannels(const DecodeStep& p, int block, int lane) {
    const int key_blocks = (p.hk * kK + kKeyWidth - 1) / kKeyWidth;
    is_key = block < key_blocks;
    is_q = is_key && lane < Shape::kLanes / 2;
    shared_column = 4 * (lane % (Shape::kLanes / 2));
    column = is_key ? block * kKeyWidth + shared_column : (block - key_blocks) * 2 * kKeyWidth + 4 * lane;
    channel = column + (is_key ? is_q ? 0 : p.hk * kK : 2 * p.hk * kK);
    first_key_head = block * (kKeyWidth / kK);
  }
  __device__ bool exist(const DecodeStep& p) const { return column < (is_key ? p.hk * kK : p.hk * p.ratio * p.v_size); }
  __device__ int key_head() const { return column / kK; }
  __device__ void read_norm_weight(const DecodeStep& p, float (&weight)[4]) const {
    const auto& weights = is_q ? p.norm.q_weight : p.norm.k_weight;
    const std::int64_t at = weights.offset(key_head()) + column % kK;
#pragma unroll
    for (int i = 0; i < 4; ++i) weight[i] = weights.load(at + i);
  }
  // Where the values of a sequence's token go, and how far it is to those of the next.
  __device__ float* values(const DecodeStep& p, int number, int token) const {
    const std::int64_t first = static_cast<std::int64_t>(number) * p.most_tokens;
    if (!is_key) return p.values + (first + token) * p.hk * p.ratio * p.v_size + column;
    return p.keys + (((first * p.hk + key_head() * p.most_tokens) + token) * 2 + (is_q ? 0 : 1)) * kK + column % kK;
  }
  __device__ int pitch(const DecodeStep& p) const { return is_key ? 2 * kK : p.hk * p.ratio * p.v_size; }
};

// Blocks along x, first those of q and k, sequences along y. At most kTokens tokens of a sequence, those that it
// replays included. Contiguous convolutions of kDecodeTaps taps, or none; V is a multiple of 128, HV / HK at most
// kStepMostRatio<kK>.
template <int kK, int kTokens, bool kMatrices, class X, class Sequence>
__global__ void __launch_bounds__(StepInputsShape<kTokens, kMatrices>::kThreads,
                                  StepInputsShape<kTokens, kMatrices>::kBlocks)
    step_inputs(const __grid_constant__ DecodeStep p) {
  using Shape = StepInputsShape<kTokens, kMatrices>;
  constexpr int kLaneTokens = Shape::kLaneTokens;
  constexpr int kLanes = kK / 4;  // of a head
  using Conv = ConvFour<kLaneTokens, X>;
  using Shared = std::conditional_t<kMatrices, StepInputsShared<kK>, char>;
  __shared__ __align__(16) Shared shared;
  pdl_wait();
  pdl_trigger();
  const int thread = static_cast<int>(threadIdx.x);
  const int number = static_cast<int>(blockIdx.y);
  const LaneChannels<kK, Shape> own(p, static_cast<int>(blockIdx.x), thread % Shape::kLanes);
  const bool is_key = own.is_key;
  Sequence tokens;
  if (!tokens.find(p, number)) return;
  Conv conv{kLaneTokens == kTokens ? 0 : thread / Shape::kLanes * kLaneTokens};
  const bool has_tokens = conv.first == 0 || conv.first < tokens.count;  // the same for a warp
  const bool has_channel = has_tokens && own.exist(p);
  if (has_channel) conv.read(p, tokens, own.channel);
  float norm_weight[4] = {1.0F, 1.0F, 1.0F, 1.0F};
  if (p.norm.norm == QkNorm::kRms && is_key && has_channel) own.read_norm_weight(p, norm_weight);

  // A lane's gate: of a token of a value head of the block's key heads.
  const int place = thread / kTokens;
  const int gate_token = thread % kTokens;
  const int gate_key_head = own.first_key_head + place / p.ratio;
  const bool has_gate =
      is_key && place < own.kKeyWidth / kK * p.ratio && gate_key_head < p.hk && gate_token < tokens.count;
  const int head = p.value_head(gate_key_head, place % p.ratio);
  GateBits gate_bits{};
  if (has_gate) gate_bits = tokens.read_gate(p, gate_token, head);

  float committed[4][Conv::kWindow];
  const int last_committed = tokens.committed() - 1;
  const bool commits = has_channel && last_committed >= conv.first && last_committed < conv.first + kLaneTokens;
  if (has_tokens) {
    conv.begin(p);
    float* to = own.values(p, number, conv.first);
    const int pitch = own.pitch(p);
#pragma unroll
    for (int n = 0; n < kLaneTokens; ++n) {
      const int t = conv.first + n;
      if (t >= tokens.count) break;
      float values[4];
      conv.next(p, n, values);
      if (t == last_committed) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < Conv::kWindow; ++j) committed[i][j] = conv.window[i][j];
        }
      }
      float factor = own.is_q ? p.scale : 1.0F;
      if (p.norm.norm != QkNorm::kNone && is_key) {
        const float squares =
            values[0] * values[0] + values[1] * values[1] + (values[2] * values[2] + values[3] * values[3]);
        factor *= p.norm.factor(warp_sum<kLanes>(squares), kK);
      }
      const float4 four = {values[0] * (norm_weight[0] * factor), values[1] * (norm_weight[1] * factor),
                           values[2] * (norm_weight[2] * factor), values[3] * (norm_weight[3] * factor)};
      if (has_channel) *reinterpret_cast<float4*>(to) = four;
      to += pitch;
      if constexpr (kMatrices) {
        float* const row = shared.rows[own.is_q ? 0 : 1] + t * Shared::kPitch;
        if (is_key) *reinterpret_cast<float4*>(row + own.shared_column) = four;
      }
    }
  }
  if (has_gate) {
    const Gate computed = p.gates.compute(gate_bits);
    const float2 gate = {expf(computed.g), computed.beta};
    const std::int64_t row = static_cast<std::int64_t>(number) * p.most_tokens + gate_token;
    p.step_gates[row * p.hk * p.ratio + head] = gate;
    if constexpr (kMatrices) {
      shared.gates[place].decay[gate_token] = gate.x;
      shared.gates[place].beta[gate_token] = gate.y;
    }
  }
  if (kTokens > 1) __syncthreads();  // what is replaced below has been read, and what is shared written
  if (commits && p.taps > 0 && tokens.slot >= 0) write_window(p, tokens.slot, own.channel, committed);
  if constexpr (Sequence::kReplays) {
    if (has_gate) tokens.keep_gate(p, gate_token, head, gate_bits);
#pragma unroll
    for (int n = 0; n < kLaneTokens; ++n) {
      const int t = conv.first + n;
      if (!has_channel || !tokens.is_draft(t)) continue;
      X* const kept = tokens.template replayed_input<X>(p, t - tokens.replayed - 1, own.channel);
      *reinterpret_cast<typename Conv::Bits*>(kept) = conv.x[n];
    }
  }
  if constexpr (kMatrices) {
    if (is_key) store_matrices<kK>(p, tokens, number, own.first_key_head, shared);
  }
}

}  // namespace thalweg::cu
