#pragma once

// The fused step for a few tokens, with everything known beforehand that is common in decoding (see decode.h), by
// clusters (see prep_step.h). What the tokens need, the gate of the norm included, is asked for before the state is.

#include "cuda/device/decode.h"
#include "cuda/device/prep_step.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cuda/device/cluster.h"
#endif

namespace thalweg::cu {

constexpr int kFewTaps = 4;
constexpr int kStepRounds = 2;  // channels of a thread, at most

template <int kTokens>
struct FewTaps {
  std::uint32_t taps[kFewTaps];
  std::uint32_t inputs[kFewTaps - 1];
  std::uint32_t x[kTokens];
  float window[kFewTaps - 1];  // the newest inputs, from prepare() on

  // The newest tap and input last; what W lacks of kFewTaps is zero.
  __device__ void read(const PrepStep& p, std::int64_t row, std::int64_t slot, std::int64_t channel, int count) {
    const int missing = kFewTaps - p.taps;
    const bool convolves = p.taps > 0;
    const std::int64_t weights = convolves ? p.conv_weight.offset(channel) - missing : 0;
    const std::int64_t state = convolves && slot >= 0 ? p.conv_state.offset(slot, channel) - missing : 0;
#pragma unroll
    for (int i = 0; i < kFewTaps; ++i) taps[i] = convolves && i >= missing ? p.conv_weight.read(weights + i) : 0;
#pragma unroll
    for (int i = 0; i + 1 < kFewTaps; ++i) {
      inputs[i] = convolves && slot >= 0 && i >= missing ? p.conv_state.read(state + i) : 0;
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) x[t] = t < count ? p.x.read(p.x.offset(row, t) + channel) : 0;
  }

  // The channel's values: to[t * stride].
  __device__ void prepare(const PrepStep& p, std::int64_t row, std::int64_t channel, int count, float* to, int stride) {
    float weight[kFewTaps];
#pragma unroll
    for (int i = 0; i < kFewTaps; ++i) weight[i] = p.conv_weight.convert(taps[i]);
#pragma unroll
    for (int i = 0; i + 1 < kFewTaps; ++i) window[i] = p.conv_state.convert(inputs[i]);
    const auto token = [&](int t, std::uint32_t bits) {
      const float input = p.x.convert(bits);
      float value = input;
      if (p.taps > 0) {
        const float sum =
            fmaf(weight[0], window[0], fmaf(weight[1], window[1], fmaf(weight[2], window[2], weight[3] * input)));
        value = sum * sigmoid(sum);
      }
      window[0] = window[1], window[1] = window[2], window[2] = input;
      to[t * stride] = value;
    };
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t < count) token(t, x[t]);
    }
#pragma unroll 1
    for (int t = kTokens; t < count; ++t) token(t, p.x.read(p.x.offset(row, t) + channel));
  }

  __device__ void update_state(const PrepStep& p, std::int64_t slot, std::int64_t channel) const {
    const int missing = kFewTaps - p.taps;
    const std::int64_t state = p.conv_state.offset(slot, channel) - missing;
#pragma unroll
    for (int i = 0; i + 1 < kFewTaps; ++i) {
      if (i >= missing) p.conv_state.store(state + i, window[i]);
    }
  }
};

// At least half as many threads as channels of q, k and the slice, and twice as many as its rows. 1 to kTogether
// tokens.
template <int kK, class State, bool kAllTogether>
__global__ void __launch_bounds__(kMaxStepThreads) decode_step(const __grid_constant__ PrepStep p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = StateTile<kK, StateLayout::kVK>;
  constexpr int kEarly = kAllTogether ? kTogether : 1;  // tokens asked for beforehand
  constexpr Tokens kTokens = kAllTogether ? Tokens::kAll : Tokens::kOneByOne;
  constexpr int kOutputs = kAllTogether ? 4 : 1;  // of a thread, whose gates are asked for beforehand
  extern __shared__ float4 shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = thread / kWarpSize;
  const int warps = threads / kWarpSize;
  const int lane = thread % kWarpSize;
  const int ratio = p.hv / p.hk;
  const int members = ratio * p.slices;
  const int rank = static_cast<int>(blockIdx.x % static_cast<unsigned>(members));
  const int group = static_cast<int>(blockIdx.x / static_cast<unsigned>(members));
  const int from = group % p.hk;
  const std::int64_t row = group / p.hk;
  const int slice = rank % p.slices;
  const int head = p.head_map == HeadMap::kTiled ? from + rank / p.slices * p.hk : from * ratio + rank / p.slices;
  const int count = static_cast<int>(p.sequences.tokens);
  const int slots = kAllTogether ? kTogether : count;
  const int rows = p.v_size / p.slices;
  const int first_v = slice * rows;
  const int warp_v = warp * Tile::kWarpV;
  const int v0 = first_v + warp_v;
  const bool works = warp < p.tile_warps;
  const DecodeMemory<kK> memory(shared, slots, rows);
  wait_for_launch_order();
  const SequenceSpan sequence = find_sequence(p.sequences, row);
  if (!sequence.valid) return;
  const std::int64_t slot = sequence.slot;

  const int channels = 2 * kK + rows;
  const auto channel_of = [&](int i) -> std::int64_t {
    if (i >= 2 * kK) return 2 * p.hk * kK + static_cast<std::int64_t>(head) * p.v_size + first_v + i - 2 * kK;
    return (i < kK ? 0 : p.hk * kK) + from * kK + i % kK;
  };
  FewTaps<kEarly> inputs[kStepRounds];
#pragma unroll
  for (int r = 0; r < kStepRounds; ++r) {
    const int i = thread + r * threads;
    if (i < channels) inputs[r].read(p, row, slot, channel_of(i), count);
  }
  std::uint32_t z[kOutputs];
  std::uint32_t weight[kOutputs];
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int at = thread + i * threads;
    const bool gated = p.z.defined() && at < count * rows;
    z[i] = gated ? p.z.read(p.z.offset(row, at / rows, head) + first_v + at % rows) : 0;
    weight[i] = gated ? p.norm_weight.read(first_v + at % rows) : 0;
  }
  Tile tile;
  if (works && slot >= 0) {
    const auto* state = static_cast<const State*>(p.state_in.data);
    tile.load_fours(state + p.state_in.offset(slot, head), p.state_in.strides[2], v0);
  } else {
    tile.clear();
  }

#pragma unroll
  for (int r = 0; r < kStepRounds; ++r) {
    const int i = thread + r * threads;
    if (i >= channels) continue;
    const bool value = i >= 2 * kK;
    float* const to = value ? memory.v + i - 2 * kK : (i < kK ? memory.q + i : memory.k + i - kK);
    inputs[r].prepare(p, row, channel_of(i), count, to, value ? rows : memory.kPitch);
  }
  const int gate_token = thread - (warps - 1) * kWarpSize;  // the last warp's first lanes
  if (gate_token >= 0 && gate_token < kTogether) {
    const Gate gate = gate_token < count ? p.gates.compute(row, gate_token, head) : Gate{};
    store_gate(gate, kAllTogether, gate_token, memory.decay, memory.beta);
  }
  __syncthreads();
  cluster_arrive();  // has read the states of the key head's channels
#pragma unroll 1
  for (int t = warp; t < slots; t += warps) {
    float4* const q_row = reinterpret_cast<float4*>(memory.q + t * memory.kPitch) + lane;
    float4* const k_row = reinterpret_cast<float4*>(memory.k + t * memory.kPitch) + lane;
    const bool within = 4 * lane < kK;
    const bool valid = within && t < count;
    const float4 q4 = valid ? *q_row : float4{};
    const float4 k4 = valid ? *k_row : float4{};
    float q[4] = {q4.x, q4.y, q4.z, q4.w};
    float k[4] = {k4.x, k4.y, k4.z, k4.w};
    // A row of zeros beyond the last token stays one, even if the norm's eps is 0.
    const float k_dot_q = t < count ? normalize_fours<kK>(p.norm, from, p.scale, q, k) : 0.0F;
    if (within) {
      *q_row = {q[0], q[1], q[2], q[3]};
      *k_row = {k[0], k[1], k[2], k[3]};
    }
    if (lane == 0) memory.k_dot_q[t] = k_dot_q;
  }
  __syncthreads();
  if (works) {
    decode_tokens<kK, kTokens>(tile, memory, count, rows, warp_v, [&](int t) {
      if (!p.snapshots.defined()) return;
      auto* state = static_cast<State*>(p.snapshots.data);
      tile.store_fours(state + p.snapshots.offset(row, t, head), p.snapshots.strides[3], v0);
    });
    if (slot >= 0) {
      auto* state = static_cast<State*>(p.state_out.data);
      tile.store_fours(state + p.state_out.offset(slot, head), p.state_out.strides[2], v0);
    }
  }
  cluster_wait();
  if (p.taps > 0 && slot >= 0) {
    const int share = (2 * kK + members - 1) / members;
#pragma unroll
    for (int r = 0; r < kStepRounds; ++r) {
      const int i = thread + r * threads;
      const bool own = i >= 2 * kK || i / share == rank;
      if (i < channels && own) inputs[r].update_state(p, slot, channel_of(i));
    }
  }
  __syncthreads();

  if (p.z.defined()) {
    float* const own = p.slices > 1 ? memory.beta : memory.squares;  // the tokens have used the former
#pragma unroll 1
    for (int t = warp; t < count; t += warps) {
      float sum = 0.0F;
#pragma unroll 1
      for (int v = lane; v < rows; v += kWarpSize) sum = fmaf(memory.v[t * rows + v], memory.v[t * rows + v], sum);
      sum = warp_sum(sum);
      if (lane == 0) own[t] = sum;
    }
    if (p.slices > 1) {
      cluster_arrive();
      cluster_wait();
      if (thread < count) {
        float sum = 0.0F;
        for (int s = 0; s < p.slices; ++s) {
          sum += load_from_block(own + thread, static_cast<unsigned>(rank - slice + s));
        }
        memory.squares[thread] = sum;
      }
      cluster_arrive();  // no block may leave before its sums have been read
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = thread + i * threads;
    if (at >= count * rows) break;
    const int t = at / rows;
    const int v = first_v + at % rows;
    float value = memory.v[at];
    if (p.z.defined()) {
      const float gate = p.z.convert(i < kOutputs ? z[i % kOutputs] : p.z.read(p.z.offset(row, t, head) + v));
      const float factor = p.norm_weight.convert(i < kOutputs ? weight[i % kOutputs] : p.norm_weight.read(v));
      value *= rsqrtf(memory.squares[t] / static_cast<float>(p.v_size) + p.norm_eps) * factor * gate * sigmoid(gate);
    }
    p.y.store(p.y.offset(row, t, head) + v, value);
  }
  if (p.z.defined() && p.slices > 1) cluster_wait();
#endif
}

}  // namespace thalweg::cu
