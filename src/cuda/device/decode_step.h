#pragma once

// The fused step for a few tokens, with everything known beforehand that is common in decoding (see decode.h). All
// blocks of a sequence's key head are a cluster, in which every channel has one block that convolves it, updates its
// state and gives its values to the others. What the tokens need, the gate of the norm included, is asked for before
// the state is.

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

  // Calls write(t, value) with the channel's values.
  template <class Write>
  __device__ void prepare(const PrepStep& p, std::int64_t row, std::int64_t channel, int count, Write write) {
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
      write(t, value);
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

// At least half as many threads as the block has channels, and twice as many as rows. 1 to kTogether tokens.
template <int kK, class State, bool kAllTogether>
__global__ void __launch_bounds__(kMaxStepThreads) decode_step(const __grid_constant__ PrepStep p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = StateTile<kK, StateLayout::kVK>;
  constexpr int kEarly = kAllTogether ? kTogether : 1;  // tokens asked for beforehand
  constexpr Tokens kTokens = kAllTogether ? Tokens::kAll : Tokens::kOneByOne;
  constexpr int kPasses = kAllTogether ? 4 : 1;  // over the outputs: 16 rows of two tokens at a time
  extern __shared__ float4 shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = thread / kWarpSize;
  const int warps = threads / kWarpSize;
  const int lane = thread % kWarpSize;
  const int members = static_cast<int>(gridDim.x);
  const int rank = static_cast<int>(blockIdx.x);  // in the cluster
  const int from = static_cast<int>(blockIdx.y);
  const std::int64_t row = blockIdx.z;
  const int slice = rank % p.slices;
  const int head = p.head_map == HeadMap::kTiled ? from + rank / p.slices * p.hk : from * p.ratio + rank / p.slices;
  const int count = static_cast<int>(p.sequences.tokens);
  const int slots = kAllTogether ? kTogether : count;
  const int rows = p.tile_warps * Tile::kWarpV;
  const int first_v = slice * rows;
  const int warp_v = warp * Tile::kWarpV;
  const int v0 = first_v + warp_v;
  const bool works = warp < p.tile_warps;
  const DecodeMemory<kK> memory(shared, slots, rows);
  cluster_arrive();  // has begun, and can be written to
  const SequenceSpan sequence = find_sequence(p.sequences, row);
  if (!sequence.valid) {
    cluster_wait();
    return;
  }
  const std::int64_t slot = sequence.slot;

  // The block's channels: its share of q and k, then v of its rows.
  const int share = (2 * kK + members - 1) / members;
  const int keys = min(share, max(0, 2 * kK - rank * share));
  const int channels = keys + rows;
  const auto channel_of = [&](int i) -> std::int64_t {
    if (i >= keys) return 2 * p.hk * kK + static_cast<std::int64_t>(head) * p.v_size + first_v + i - keys;
    const int key = rank * share + i;
    return (key < kK ? 0 : p.hk * kK) + from * kK + key % kK;
  };
  FewTaps<kEarly> inputs[kStepRounds];
#pragma unroll
  for (int r = 0; r < kStepRounds; ++r) {
    const int i = thread + r * threads;
    if (i < channels) inputs[r].read(p, row, slot, channel_of(i), count);
  }
  const int gate_token = thread - (warps - 1) * kWarpSize;  // the last warp's first lanes
  RawGate raw_gate{};
  if (gate_token >= 0 && gate_token < count) raw_gate = p.gates.read(row, gate_token, head);
  const WarpRows warp_rows;
  std::uint32_t z[kPasses] = {};
  std::uint32_t weight = 0;
  if (works && p.z.defined()) {
    weight = p.norm_weight.read(v0 + warp_rows.row());
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int t = warp_rows.token(i);
      if (t < count) z[i] = p.z.read(p.z.offset(row, t, head) + v0 + warp_rows.row());
    }
  }
  Tile tile;
  if (works && slot >= 0) {
    const auto* state = static_cast<const State*>(p.state_in.data);
    tile.load_fours(state + p.state_in.offset(slot, head), p.state_in.strides[2], v0);
  } else {
    tile.clear();
  }

  cluster_wait();
#pragma unroll
  for (int r = 0; r < kStepRounds; ++r) {
    const int i = thread + r * threads;
    if (i >= channels) continue;
    if (i >= keys) {
      float* const to = memory.v + i - keys;
      inputs[r].prepare(p, row, channel_of(i), count, [&](int t, float value) { to[t * rows] = value; });
    } else {
      const int key = rank * share + i;
      float* const to = key < kK ? memory.q + key : memory.k + key - kK;
      inputs[r].prepare(p, row, channel_of(i), count, [&](int t, float value) {
        for (int m = 0; m < members; ++m) store_to_block(to + t * memory.kPitch, static_cast<unsigned>(m), value);
      });
    }
    if (p.taps > 0 && slot >= 0) inputs[r].update_state(p, slot, channel_of(i));
  }
  if (gate_token >= 0 && gate_token < kTogether) {
    const Gate gate = gate_token < count ? p.gates.compute(raw_gate) : Gate{};
    store_gate(gate, kAllTogether, gate_token, memory.decay, memory.beta);
  }
  cluster_arrive();  // has given its values to the others
  cluster_wait();
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
  __syncwarp();

  // A warp writes the outputs of its own rows; the norm's sums come from all warps of the head.
  float outputs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = warp_rows.token(i);
    outputs[i] = works && t < count ? memory.v[t * rows + warp_v + warp_rows.row()] : 0.0F;
  }
  if (p.z.defined()) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (2 * i >= count) break;
      const float sum = warp_sum<16>(outputs[i] * outputs[i]);
      if (works && warp_rows.row() == 0) memory.squares[warp * kTogether + warp_rows.token(i)] = sum;
    }
    __syncthreads();
    if (p.slices > 1) {
      cluster_arrive();
      cluster_wait();
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = warp_rows.token(i);
    if (!works || t >= count) continue;
    float value = outputs[i];
    if (p.z.defined()) {
      float squares = 0.0F;
      for (int s = 0; s < p.slices; ++s) {
        for (int w = 0; w < p.tile_warps; ++w) {
          const float* const sum = memory.squares + w * kTogether + t;
          squares += p.slices > 1 ? load_from_block(sum, static_cast<unsigned>(rank - slice + s)) : *sum;
        }
      }
      const float gate =
          p.z.convert(i < kPasses ? z[i % kPasses] : p.z.read(p.z.offset(row, t, head) + v0 + warp_rows.row()));
      value *= rsqrtf(squares / static_cast<float>(p.v_size) + p.norm_eps) * p.norm_weight.convert(weight) * gate *
               sigmoid(gate);
    }
    p.y.store(p.y.offset(row, t, head) + v0 + warp_rows.row(), value);
  }
  if (p.z.defined() && p.slices > 1) {
    cluster_arrive();  // no block may leave before its sums have been read
    cluster_wait();
  }
#endif
}

}  // namespace thalweg::cu
