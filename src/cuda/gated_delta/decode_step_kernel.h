#pragma once

// The fused step for a few tokens, with everything known beforehand that is common in decoding (see decode.h). Every
// block convolves all of q and k, and v of its own rows, while its piece of the state is on its way. The convolution's
// inputs that several blocks read are replaced by one of them: all blocks of a sequence's key head are a cluster, each
// arrives at its barrier when it has read them, and nobody waits there before the new state of the head is worked out.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode_kernel.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cuda/common/cluster.h"
#endif

namespace thalweg::cu {

constexpr int kDecodeTaps = 4;
constexpr int kStepRounds = 2;  // channels of a thread, at most
constexpr int kMaxDecodeStepThreads = 512;

// In the order in which kernels need it.
struct DecodeStep {
  Compact<2> x;            // [B,T,2*HK*K + HV*V]
  Compact<2> conv_state;   // [slots,channels,W-1]
  Compact<1> conv_weight;  // [channels,W]
  SlotTable slots;
  int tokens = 1;
  int hk = 0;
  int ratio = 1;  // value heads of a key head
  int v_size = 0;
  int taps = 0;        // 0: no convolution
  int tile_warps = 1;  // warps of a block that hold pieces of the state
  int slices = 1;      // pieces of a head
  int stages = 1;      // stream_step: states of heads in shared memory
  int units = 0;       // stream_step: key heads of all sequences
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
};

template <int kTokens>
struct ConvChannel {
  std::uint32_t taps[kDecodeTaps];
  std::uint32_t inputs[kDecodeTaps - 1];
  std::uint32_t x[kTokens];
  float window[kDecodeTaps - 1];  // the newest inputs, from prepare() on

  // The newest tap and input last; what W lacks of kDecodeTaps is zero.
  __device__ void read(const DecodeStep& p, int row, int slot, int channel) {
    const int missing = kDecodeTaps - p.taps;
    const bool convolves = p.taps > 0;
    const std::int64_t weights = convolves ? p.conv_weight.offset(channel) - missing : 0;
    const std::int64_t state = convolves && slot >= 0 ? p.conv_state.offset(slot, channel) - missing : 0;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) x[t] = t < p.tokens ? p.x.read(p.x.offset(row, t) + channel) : 0;
#pragma unroll
    for (int i = 0; i + 1 < kDecodeTaps; ++i) {
      inputs[i] = convolves && slot >= 0 && i >= missing ? p.conv_state.read(state + i) : 0;
    }
#pragma unroll
    for (int i = 0; i < kDecodeTaps; ++i) taps[i] = convolves && i >= missing ? p.conv_weight.read(weights + i) : 0;
  }

  // Calls write(t, value) with the channel's values.
  template <class Write>
  __device__ void prepare(const DecodeStep& p, int row, int channel, Write write) {
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
      if (t < p.tokens) token(t, x[t]);
    }
#pragma unroll 1
    for (int t = kTokens; t < p.tokens; ++t) token(t, p.x.read(p.x.offset(row, t) + channel));
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

// What a block has in shared memory besides the tokens.
template <int kK>
struct DecodeStepMemory {
  static constexpr int kKeyWarps = 2 * kK / kWarpSize;  // that convolve q and k
  static constexpr int kMaxSums = 64;                   // warps that share a head

  float* key_squares;  // [kTogether,kKeyWarps]
  float* sums;         // [kTogether,kMaxSums]: of the squares of the outputs, from all blocks of the head
  float* factors;      // [warps,2,kTogether], of q and k

  __device__ explicit DecodeStepMemory(float* memory)
      : key_squares(memory), sums(key_squares + kTogether * kKeyWarps), factors(sums + kTogether * kMaxSums) {}
  static std::size_t bytes(std::int64_t warps) {
    return sizeof(float) * kTogether * static_cast<std::size_t>(kKeyWarps + kMaxSums + 2 * warps);
  }
  __device__ float* q_factors(int warp) const { return factors + 2 * kTogether * warp; }
  __device__ float* k_factors(int warp) const { return q_factors(warp) + kTogether; }

  // What q and k are to be multiplied with, for the calling warp itself.
  __device__ void find_factors(const DecodeStep& p, int warp) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int t = lane % kTogether;
    const bool is_q = lane < kTogether;
    if (lane < 2 * kTogether) {
      float squares = 0.0F;
      if (t < p.tokens) {
        const float* const parts = key_squares + t * kKeyWarps + (is_q ? 0 : kKeyWarps / 2);
#pragma unroll
        for (int i = 0; i < kKeyWarps / 2; ++i) squares += parts[i];
      }
      // Beyond the last token the products are 0, even if the norm's eps is 0.
      q_factors(warp)[lane] = t < p.tokens ? (is_q ? p.scale : 1.0F) * p.norm.factor(squares, kK) : 0.0F;
    }
    __syncwarp();
  }

  // The sums of `count` warps are read four at a time: what the last four have too many is cleared beforehand.
  __device__ void clear_end(int t, int count, int i) const {
    if (i < (count + 3) / 4 * 4 - count) sums[t * kMaxSums + count + i] = 0.0F;
  }
  __device__ float sum_of_squares(int t, int count) const {
    const auto* const parts = reinterpret_cast<const float4*>(sums + t * kMaxSums);
    float sum[4] = {};
#pragma unroll 4
    for (int i = 0; i < (count + 3) / 4; ++i) {
      const float4 four = parts[i];
      sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
    }
    return sum[0] + sum[1] + (sum[2] + sum[3]);
  }
};

// An output after the norm over its row of V, whose squares have that sum.
__device__ inline float gated_norm(const DecodeStep& p, float output, float squares, std::uint32_t z_bits,
                                   std::uint32_t weight_bits) {
  const float gate = p.z.convert(z_bits);
  return output * rsqrtf(squares / static_cast<float>(p.v_size) + p.norm_eps) * p.norm_weight.convert(weight_bits) *
         gate * sigmoid(gate);
}

// The sums of squares of a warp's outputs of all tokens, from output(t, i), i < kRows: put(t, i, sum) is called by
// kRows lanes for a token.
template <int kRows, class Output, class Put>
__device__ inline void sum_squares(int count, Output output, Put put) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int first = 0; first < kTogether; first += kWarpSize / kRows) {
    if (first >= count) break;
    const int t = first + lane / kRows;
    const float value = t < count ? output(t, lane % kRows) : 0.0F;
    const float sum = warp_sum<kRows>(value * value);
    if (t < count) put(t, lane % kRows, sum);
  }
}

// At least half as many threads as the block has channels. 1 to kTogether tokens.
template <int kK, class State, Tokens kTokens, bool kNarrow>
__global__ void __launch_bounds__(kNarrow ? kMaxDecodeStepThreads : kMaxWarps* kWarpSize, kNarrow ? 1 : 2)
    decode_step(const __grid_constant__ DecodeStep p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = StateTile<kK, StateLayout::kVK, kNarrow ? 1 : 0>;
  constexpr bool kAllTogether = kTokens != Tokens::kOneByOne;
  constexpr int kEarly = kAllTogether ? kTogether : 1;  // tokens asked for beforehand
  constexpr int kPasses = kAllTogether ? 4 : 1;         // over the outputs, whose z is asked for beforehand
  extern __shared__ float4 shared[];
  pdl_wait();
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = thread / kWarpSize;
  const int warps = threads / kWarpSize;
  const int lane = thread % kWarpSize;
  // Slices along x, the heads of a key head along y, both of them one cluster.
  const int members = p.slices * p.ratio;
  const int slice = static_cast<int>(blockIdx.x);
  const int member = static_cast<int>(cluster_place_y());
  const int rank = member * p.slices + slice;  // in the cluster
  const int from = static_cast<int>(cluster_y());
  const int row = static_cast<int>(blockIdx.z);
  const int head = p.head_map == HeadMap::kTiled ? from + member * p.hk : static_cast<int>(blockIdx.y);
  const int count = p.tokens;
  const int rows = p.tile_warps * Tile::kWarpV;
  const int first_v = slice * rows;
  const int warp_v = warp * Tile::kWarpV;
  const int v0 = first_v + warp_v;
  const bool works = warp < p.tile_warps;
  DecodeMemory<kK> memory(shared, kAllTogether ? kTogether : count, rows);
  const DecodeStepMemory<kK> more(reinterpret_cast<float*>(memory.scratch + (kAllTogether ? p.tile_warps : 0)));
  memory.q_factor = more.q_factors(warp);
  memory.k_factor = more.k_factors(warp);
  int slot;
  if (!find_slot(p.slots, row, slot)) return;  // and so do all blocks of the cluster

  // Everything that comes from far away. The block's channels are those of q, of k, and v of its rows.
  const int channels = 2 * kK + rows;
  const auto channel_of = [&](int i) {
    if (i >= 2 * kK) return 2 * p.hk * kK + head * p.v_size + first_v + i - 2 * kK;
    return (i < kK ? 0 : p.hk * kK) + from * kK + i % kK;
  };
  ConvChannel<kEarly> inputs[kStepRounds];
  std::uint32_t key_weight[kStepRounds] = {};
#pragma unroll
  for (int r = 0; r < kStepRounds; ++r) {
    const int i = thread + r * threads;
    if (i < channels) inputs[r].read(p, row, slot, channel_of(i));
    if (p.norm.norm == QkNorm::kRms && i < 2 * kK) {
      const auto& weights = i < kK ? p.norm.q_weight : p.norm.k_weight;
      key_weight[r] = weights.read(weights.offset(from) + i % kK);
    }
  }
  Tile tile;
  if (works && slot >= 0) {
    const auto* state = static_cast<const State*>(p.state_in.data);
    tile.load_fours(state + p.state_in.offset(slot, head), p.state_in.strides[2], v0);
  } else {
    tile.clear();
  }
  const int gate_token = thread - (warps - 1) * kWarpSize;  // the last warp's first lanes
  GateBits gate_bits{};
  if (gate_token >= 0 && gate_token < count) gate_bits = p.gates.read(row, gate_token, head);
  // Output i of [tokens,rows] is of thread i from the last one on: the first ones have more to do.
  const int first_output = threads - 1 - thread;
  const auto token_of = [&](int output) { return count == 1 ? 0 : output / rows; };
  const auto read_z = [&](int output) {
    const int t = token_of(output);
    return p.z.defined() ? p.z.read(p.z.offset(row, t, head) + first_v + output - t * rows) : 0;
  };
  const auto read_weight = [&](int output) {
    return p.z.defined() ? p.norm_weight.read(first_v + output - token_of(output) * rows) : 0;
  };
  std::uint32_t z[kPasses] = {};
  std::uint32_t weight[kPasses] = {};
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int output = first_output + i * threads;
    if (output < count * rows) z[i] = read_z(output), weight[i] = read_weight(output);
  }

#pragma unroll
  for (int r = 0; r < kStepRounds; ++r) {
    const int i = thread + r * threads;  // a warp's channels are all of q, all of k or all of v
    if (i >= channels) continue;
    if (i >= 2 * kK) {
      float* const to = memory.v + i - 2 * kK;
      inputs[r].prepare(p, row, channel_of(i), [&](int t, float value) { to[t * rows] = value; });
    } else {
      float* const to = i < kK ? memory.q + i : memory.k + i - kK;
      const float key_factor = p.norm.norm == QkNorm::kRms ? p.norm.q_weight.convert(key_weight[r]) : 1.0F;
      inputs[r].prepare(p, row, channel_of(i), [&](int t, float value) {
        to[t * memory.kPitch] = value * key_factor;
        const float squares = warp_sum(value * value);
        if (lane == 0) more.key_squares[t * more.kKeyWarps + i / kWarpSize] = squares;
      });
    }
  }
  if (thread < kTogether * 4) more.clear_end(thread / 4, p.tile_warps * p.slices, thread % 4);
  if constexpr (kAllTogether) {
    for (int i = thread; i < (kTogether - count) * memory.kPitch; i += threads) {
      memory.q[count * memory.kPitch + i] = memory.k[count * memory.kPitch + i] = 0.0F;
    }
  }
  if (gate_token >= 0) {
    Gate gate = gate_token < count ? p.gates.compute(gate_bits) : Gate{};
    gate = accumulated(gate, kAllTogether, gate_token % kTogether);
    if (gate_token < kTogether) store_gate(gate, kAllTogether, memory.decay + gate_token);
  }
  cluster_arrive_relaxed();  // has read the convolution's inputs: what was made of them has been written
  __syncthreads();
  more.find_factors(p, warp);
  if (works) {
    decode_tokens<kK, kTokens>(tile, memory, count, rows, warp_v, [&](int t) {
      if (!p.snapshots.defined()) return;
      auto* state = static_cast<State*>(p.snapshots.data);
      tile.store_fours(state + p.snapshots.offset(row, t, head), p.snapshots.strides[3], v0);
    });
  }
  __syncwarp();

  cluster_wait();  // all have begun, and have read what is replaced below
  if (works && p.z.defined()) {
    sum_squares<Tile::kWarpV>(
        count, [&](int t, int i) { return memory.v[t * rows + warp_v + i]; },
        [&](int t, int i, float sum) {
          float* const to = more.sums + t * more.kMaxSums + slice * p.tile_warps + warp;
          for (int s = i; s < p.slices; s += Tile::kWarpV) {
            store_to_block(to, static_cast<unsigned>(rank - slice + s), sum);
          }
        });
  }
  if (p.slices > 1) cluster_arrive();
  if (works && slot >= 0) {
    auto* state = static_cast<State*>(p.state_out.data);
    tile.store_fours(state + p.state_out.offset(slot, head), p.state_out.strides[2], v0);
  }
  if (p.taps > 0 && slot >= 0) {
    const int share = (2 * kK + members - 1) / members;  // of q and k: this block's to update
#pragma unroll
    for (int r = 0; r < kStepRounds; ++r) {
      const int i = thread + r * threads;
      const bool owns = i >= 2 * kK ? i < channels : i >= rank * share && i < (rank + 1) * share;
      if (owns) inputs[r].update_state(p, slot, channel_of(i));
    }
  }
  if (p.slices > 1) {
    cluster_wait();
  } else {
    __syncthreads();
  }
  const auto write_output = [&](int output, std::uint32_t z_bits, std::uint32_t weight_bits) {
    const int t = token_of(output);
    float value = memory.v[output];
    if (p.z.defined()) {
      const float squares = more.sum_of_squares(t, p.tile_warps * p.slices);
      value = gated_norm(p, value, squares, z_bits, weight_bits);
    }
    p.y.store(p.y.offset(row, t, head) + first_v + output - t * rows, value);
  };
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    if (first_output + i * threads < count * rows) write_output(first_output + i * threads, z[i], weight[i]);
  }
#pragma unroll 1
  for (int output = first_output + kPasses * threads; output < count * rows; output += threads) {
    write_output(output, read_z(output), read_weight(output));
  }
  pdl_trigger();
#endif
}

}  // namespace thalweg::cu
