#pragma once

// The fused step for 1 to 8 tokens, with the same known at compile time as in decode_kernel.h. The blocks that share a
// key head of a sequence are one cluster.
//
// Roles: every block convolves all of the key head's q and k, and v of its own rows, a channel per thread; the first
//   tile_warps warps hold rows of the state; the last warp's lanes compute the gates, a token each.
// Shared memory: the tokens (DecodeMemory), sums of squares and norm factors (DecodeStepMemory).
// Pipeline: loads of channels, state, gates and z; convolution while the state is in flight; tokens; outputs.
// Barriers: several blocks read the convolution's inputs that one of them replaces. Each arrives at the cluster barrier
//   after its reads and waits only after its tokens. A second one completes the heads' sums of squares.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode_kernel.h"
#include "cuda/gated_delta/decode_step_tokens.h"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cuda/common/cluster.h"
#endif

namespace thalweg::cu {

constexpr int kStepRounds = 2;  // channels of a thread in decode_step, at most
constexpr int kMaxDecodeStepThreads = 512;

// A block's shared memory besides the tokens.
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

  // Computes the norm factors of q and k, for the calling warp itself.
  __device__ void find_factors(const DecodeStep& p, int count, int warp) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int t = lane % kTogether;
    const bool is_q = lane < kTogether;
    if (lane < 2 * kTogether) {
      float squares = 0.0F;
      if (t < count) {
        const float* const sums_of_warps = key_squares + t * kKeyWarps + (is_q ? 0 : kKeyWarps / 2);
#pragma unroll
        for (int i = 0; i < kKeyWarps / 2; ++i) squares += sums_of_warps[i];
      }
      // Beyond the last token the products are 0, even if the norm's eps is 0.
      q_factors(warp)[lane] = t < count ? (is_q ? p.scale : 1.0F) * p.norm.factor(squares, kK) : 0.0F;
    }
    __syncwarp();
  }

  // sum_of_squares() reads the sums of `count` warps four at a time: this clears the rest of the last four.
  __device__ void clear_end(int t, int count, int i) const {
    if (i < (count + 3) / 4 * 4 - count) sums[t * kMaxSums + count + i] = 0.0F;
  }
  __device__ float sum_of_squares(int t, int count) const {
    const auto* const sums_of_warps = reinterpret_cast<const float4*>(sums + t * kMaxSums);
    float sum[4] = {};
#pragma unroll 4
    for (int i = 0; i < (count + 3) / 4; ++i) {
      const float4 four = sums_of_warps[i];
      sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
    }
    return sum[0] + sum[1] + (sum[2] + sum[3]);
  }
};

// An output after its gated norm.
__device__ inline float gated_norm(float output, float factor, float weight, float gate) {
  return output * factor * weight * gate * sigmoid(gate);
}

// Sums the squares of a warp's outputs, output(t, i) with i < kRows, for each token. kRows lanes of a token call
// put(t, i, sum).
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

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Kernel decode_step, for one thread.
template <int kK, class State, Tokens kTokens, bool kNarrow>
struct DecodeStepBlock {
  using Tile = StateTile<kK, StateLayout::kVK, kNarrow ? 1 : 0>;
  using Memory = DecodeMemory<kK>;
  using StepMemory = DecodeStepMemory<kK>;
  static constexpr bool kAllTogether = kTokens == Tokens::kAll;
  static constexpr int kEarly = kAllTogether ? kTogether : 1;  // tokens whose inputs are loaded beforehand
  static constexpr int kPasses = kAllTogether ? 4 : 1;         // over the outputs whose z is loaded beforehand

  // The inputs of a thread's channels, with the norm weights of those of q and k.
  struct Channels {
    ConvChannel<kEarly> inputs[kStepRounds];
    std::uint32_t norm_weight[kStepRounds] = {};
  };
  // z and the norm's weight of a thread's outputs.
  struct OutputInputs {
    std::uint32_t z[kPasses] = {};
    std::uint32_t weight[kPasses] = {};
  };

  const DecodeStep& p;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = thread / kWarpSize;
  const int warps = threads / kWarpSize;
  const int lane = thread % kWarpSize;
  // A cluster has the blocks of a head along x, the heads of a key head along y.
  const int members = p.row_blocks * p.ratio;
  const int row_block = static_cast<int>(blockIdx.x);
  const int member = static_cast<int>(cluster_place_y());
  const int rank = member * p.row_blocks + row_block;  // in the cluster
  const int k_head = static_cast<int>(cluster_y());
  const int head = p.head_map == HeadMap::kTiled ? k_head + member * p.hk : static_cast<int>(blockIdx.y);
  const int rows = p.tile_warps * Tile::kWarpV;  // of the block
  const int first_v = row_block * rows;
  const int warp_v = warp * Tile::kWarpV;
  const int v0 = first_v + warp_v;
  const bool has_rows = warp < p.tile_warps;
  // The block's channels are those of q, of k, and v of its rows.
  const int channels = 2 * kK + rows;
  const int gate_token = thread - (warps - 1) * kWarpSize;  // of the last warp's lanes; negative in others
  // Threads take the outputs [tokens,rows] from the last one on: the first threads have more channels.
  const int first_output = threads - 1 - thread;
  RowTokens sequence{};

  __device__ __forceinline__ int channel_of(int i) const {
    if (i >= 2 * kK) return 2 * p.hk * kK + head * p.v_size + first_v + i - 2 * kK;
    return (i < kK ? 0 : p.hk * kK) + k_head * kK + i % kK;
  }
  __device__ __forceinline__ int token_of(int output) const { return sequence.count == 1 ? 0 : output / rows; }
  __device__ __forceinline__ bool is_output(int output) const { return output < sequence.count * rows; }

  __device__ __forceinline__ void read_channels(Channels& own) const {
#pragma unroll
    for (int r = 0; r < kStepRounds; ++r) {
      const int i = thread + r * threads;
      if (i < channels) own.inputs[r].read(p, sequence, channel_of(i));
      if (p.norm.norm == QkNorm::kRms && i < 2 * kK) {
        const auto& weights = i < kK ? p.norm.q_weight : p.norm.k_weight;
        own.norm_weight[r] = weights.read(weights.offset(k_head) + i % kK);
      }
    }
  }

  __device__ __forceinline__ void load_state(Tile& tile) const {
    if (has_rows && sequence.slot >= 0) {
      const auto* state = static_cast<const State*>(p.state_in.data);
      tile.load_aligned(state + p.state_in.offset(sequence.slot, head), p.state_in.strides[2], v0);
    } else {
      tile.clear();
    }
  }

  __device__ __forceinline__ std::uint32_t read_z(int output) const {
    const int t = token_of(output);
    return p.z.defined() ? p.z.read(p.z.offset(sequence.row, t, head) + first_v + output - t * rows) : 0;
  }
  __device__ __forceinline__ std::uint32_t read_norm_weight(int output) const {
    return p.z.defined() ? p.norm_weight.read(first_v + output - token_of(output) * rows) : 0;
  }
  __device__ __forceinline__ void read_output_inputs(OutputInputs& own) const {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int output = first_output + i * threads;
      if (is_output(output)) own.z[i] = read_z(output), own.weight[i] = read_norm_weight(output);
    }
  }

  // Convolves the thread's channels into shared memory, with the warps' sums of squares of q and k.
  __device__ __forceinline__ void convolve(Channels& own, const Memory& memory, const StepMemory& step_memory) const {
#pragma unroll
    for (int r = 0; r < kStepRounds; ++r) {
      const int i = thread + r * threads;  // a warp's channels are all of q, all of k or all of v
      if (i >= channels) continue;
      if (i >= 2 * kK) {
        float* const to = memory.v + i - 2 * kK;
        own.inputs[r].prepare(p, sequence, channel_of(i), [&](int t, float value) { to[t * rows] = value; });
      } else {
        float* const to = i < kK ? memory.q + i : memory.k + i - kK;
        const float weight = p.norm.norm == QkNorm::kRms ? p.norm.q_weight.convert(own.norm_weight[r]) : 1.0F;
        own.inputs[r].prepare(p, sequence, channel_of(i), [&](int t, float value) {
          to[t * memory.kPitch] = value * weight;
          const float squares = warp_sum(value * value);
          if (lane == 0) step_memory.key_squares[t * step_memory.kKeyWarps + i / kWarpSize] = squares;
        });
      }
    }
  }

  // Zeros for q and k beyond the last token.
  __device__ __forceinline__ void clear_missing_tokens(const Memory& memory) const {
    const int end = sequence.count * memory.kPitch;
    for (int i = thread; i < kTogether * memory.kPitch - end; i += threads) {
      memory.q[end + i] = memory.k[end + i] = 0.0F;
    }
  }

  __device__ __forceinline__ void store_gates(const Memory& memory, const GateBits& bits) const {
    if (gate_token < 0) return;
    Gate gate = gate_token < sequence.count ? p.gates.compute(bits) : Gate{};
    gate = accumulated(gate, kAllTogether, gate_token % kTogether);
    if (gate_token < kTogether) store_gate(gate, kAllTogether, memory.decay + gate_token);
  }

  // Writes the warp's sums of squares of the outputs to every block of the head.
  __device__ __forceinline__ void share_squares(const Memory& memory, const StepMemory& step_memory) const {
    sum_squares<Tile::kWarpV>(
        sequence.count, [&](int t, int i) { return memory.v[t * rows + warp_v + i]; },
        [&](int t, int i, float sum) {
          float* const to = step_memory.sums + t * step_memory.kMaxSums + row_block * p.tile_warps + warp;
          for (int s = i; s < p.row_blocks; s += Tile::kWarpV) {
            store_to_block(to, static_cast<unsigned>(rank - row_block + s), sum);
          }
        });
  }

  // Replaces the convolution's inputs: those of v of the block's rows, and the block's share of q and k.
  __device__ __forceinline__ void update_channels(const Channels& own) const {
    const int share = (2 * kK + members - 1) / members;
#pragma unroll
    for (int r = 0; r < kStepRounds; ++r) {
      const int i = thread + r * threads;
      const bool owns = i >= 2 * kK ? i < channels : i >= rank * share && i < (rank + 1) * share;
      if (owns && p.taps > 0) own.inputs[r].update_state(p, sequence.slot, channel_of(i));
    }
  }

  __device__ __forceinline__ void write_output(const Memory& memory, const StepMemory& step_memory, int output,
                                               std::uint32_t z_bits, std::uint32_t weight_bits) const {
    const int t = token_of(output);
    float value = memory.v[output];
    if (p.z.defined()) {
      const float squares = step_memory.sum_of_squares(t, p.tile_warps * p.row_blocks);
      const float gate = p.z.convert(z_bits);
      const float factor = rsqrtf(squares / static_cast<float>(p.v_size) + p.norm_eps);
      value = gated_norm(value, factor, p.norm_weight.convert(weight_bits), gate);
    }
    p.y.store(p.y.offset(sequence.row, t, head) + first_v + output - t * rows, value);
  }

  __device__ __forceinline__ void run(float4* shared) {
    Memory memory(shared, kAllTogether ? kTogether : p.most_tokens, rows);
    const StepMemory step_memory(reinterpret_cast<float*>(memory.scratch + (kAllTogether ? p.tile_warps : 0)));
    memory.q_factor = step_memory.q_factors(warp);
    memory.k_factor = step_memory.k_factors(warp);
    if (!sequence.find(p, static_cast<int>(blockIdx.z))) return;  // the whole cluster returns
    const int count = sequence.count;
    Channels own;
    read_channels(own);
    Tile tile;
    load_state(tile);
    GateBits gate_bits{};
    if (gate_token >= 0 && gate_token < count) gate_bits = sequence.read_gate(p, gate_token, head);
    OutputInputs output_inputs;
    read_output_inputs(output_inputs);

    convolve(own, memory, step_memory);
    if (thread < kTogether * 4) step_memory.clear_end(thread / 4, p.tile_warps * p.row_blocks, thread % 4);
    if constexpr (kAllTogether) clear_missing_tokens(memory);
    store_gates(memory, gate_bits);
    cluster_arrive_relaxed();  // after the reads of the convolution's inputs, whose results have been stored
    __syncthreads();
    step_memory.find_factors(p, count, warp);
    if (has_rows) {
      decode_tokens<kK, kTokens>(tile, memory, count, rows, warp_v, [&](int t) {
        if (!p.snapshots.defined()) return;
        auto* state = static_cast<State*>(p.snapshots.data);
        tile.store_streaming(state + p.snapshots.offset(sequence.row, t, head), p.snapshots.strides[3], v0);
      });
    }
    __syncwarp();

    cluster_wait();  // all blocks have begun, and have read what is replaced below
    if (has_rows && p.z.defined()) share_squares(memory, step_memory);
    if (p.row_blocks > 1) cluster_arrive();
    if (has_rows && sequence.slot >= 0) {
      auto* state = static_cast<State*>(p.state_out.data);
      tile.store_aligned(state + p.state_out.offset(sequence.slot, head), p.state_out.strides[2], v0);
    }
    if (sequence.slot >= 0) update_channels(own);
    if (p.row_blocks > 1) {
      cluster_wait();
    } else {
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int output = first_output + i * threads;
      if (is_output(output)) write_output(memory, step_memory, output, output_inputs.z[i], output_inputs.weight[i]);
    }
#pragma unroll 1
    for (int output = first_output + kPasses * threads; output < count * rows; output += threads) {
      if (is_output(output)) write_output(memory, step_memory, output, read_z(output), read_norm_weight(output));
    }
    pdl_trigger();
  }
};
#endif

// At least half as many threads as the block has channels. 1 to kTogether tokens of a sequence.
template <int kK, class State, Tokens kTokens, bool kNarrow>
__global__ void __launch_bounds__(kNarrow ? kMaxDecodeStepThreads : kMaxWarps* kWarpSize, kNarrow ? 1 : 2)
    decode_step(const __grid_constant__ DecodeStep p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float4 shared[];
  pdl_wait();
  DecodeStepBlock<kK, State, kTokens, kNarrow>{p}.run(shared);
#endif
}

}  // namespace thalweg::cu
