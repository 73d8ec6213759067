#pragma once

// Several tokens of the fused step for many sequences, after step_inputs: the rule, and the gated norm of its outputs.
// A block has one value head of a sequence.
//
// Roles: every warp holds eight rows of the state and writes outputs.
// Shared memory: the tokens (DecodeMemory), and the factors of the outputs behind them.
// Pipeline: states and z are loaded while step_inputs still runs, whose end the block awaits before it reads the
//   tokens. As many blocks as fit on a multiprocessor overlap each other's loads, arithmetic and stores.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/step_head.h"

namespace thalweg::cu {

constexpr int kStepStatesWarps = 16;
constexpr int kStepStatesThreads = kStepStatesWarps * kWarpSize;
constexpr std::int64_t kOutputGatesBytes = sizeof(float) * kTogether * kStepStatesV;

// An access of a warp is two rows of 256 bytes.
template <int kK, class State>
using StepStatesTile = std::conditional_t<sizeof(State) == 4, StateTile<kK, StateLayout::kVK, 4, 16>,
                                          StateTile<kK, StateLayout::kVK, kK / 32, kK / 8, 8>>;

// Kernel step_states, for one thread.
template <int kK, class State, Tokens kTokens, class Sequence>
struct StepStatesBlock {
  using Tile = StepStatesTile<kK, State>;
  using Memory = DecodeMemory<kK>;
  static_assert(Tile::kWarpV * kStepStatesWarps == kStepStatesV);
  static constexpr int kPasses = kTogether * kStepStatesV / kStepStatesThreads;  // over the outputs [tokens,V]

  const DecodeStep& p;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  const StepHead place{p, static_cast<int>(blockIdx.x)};
  const int head = place.head;
  const int warp_v = warp * Tile::kWarpV;
  Sequence sequence{};

  __device__ bool is_output(int output) const {
    const int t = output / kStepStatesV;
    return t < sequence.count && sequence.is_own(t);
  }
  __device__ std::uint32_t read_z(int output) const {
    if (!p.z.defined() || !is_output(output)) return 0;
    return p.z.read(p.z.offset(sequence.row, sequence.place(output / kStepStatesV), head) + output % kStepStatesV);
  }

  __device__ __forceinline__ void load_state(Tile& tile) const {
    if (sequence.slot >= 0) {
      const auto* state = static_cast<const State*>(p.state_in.data);
      tile.load_aligned(state + p.state_in.offset(sequence.slot, head), p.state_in.strides[2], warp_v);
    } else {
      tile.clear();
    }
  }

  // Copies the tokens, four channels at a time.
  __device__ __forceinline__ void load_tokens(const Memory& memory) const {
    constexpr int kKeyFours = kK / 4;
    constexpr int kFours = 2 * kKeyFours + kStepStatesV / 4;  // of a token
    constexpr int kRounds = (kTogether * kFours + kStepStatesThreads - 1) / kStepStatesThreads;
    float4 parts[kRounds];
    float* places[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int i = thread + r * kStepStatesThreads;
      places[r] = nullptr;
      if (i >= sequence.count * kFours) continue;
      const int t = i / kFours;
      const int four = i % kFours;
      const float* from = place.inputs(p) + static_cast<std::int64_t>(t) * p.channels;
      float* to;
      if (four < 2 * kKeyFours) {
        const bool is_q = four < kKeyFours;
        const int at = four % kKeyFours * 4;
        from += ((is_q ? 0 : p.hk) + place.k_head) * kK + at;
        to = (is_q ? memory.q : memory.k) + t * memory.kPitch + at;
      } else {
        const int at = (four - 2 * kKeyFours) * 4;
        from += 2 * p.hk * kK + head * kStepStatesV + at;
        to = memory.v + t * kStepStatesV + at;
      }
      parts[r] = read_prepared(from);
      places[r] = to;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (places[r] != nullptr) *reinterpret_cast<float4*>(places[r]) = parts[r];
    }
  }

  // What a thread's outputs are multiplied by after their norm, behind the rest of the shared memory.
  __device__ float* output_gates(const Memory& memory) const {
    if (kTokens == Tokens::kOneByOne) return reinterpret_cast<float*>(memory.products);
    return reinterpret_cast<float*>(memory.with_state + p.most_tokens * kStepStatesV);
  }
  __device__ float output_gate(std::uint32_t z_bits, std::uint32_t norm_weight) const {
    const float z = p.z.convert(z_bits);
    return p.norm_weight.convert(norm_weight) * z * sigmoid(z);
  }

  // By the last warp, which has the fewest other loads.
  __device__ __forceinline__ void load_gates(const Memory& memory) const {
    const int t = thread - (kStepStatesWarps - 1) * kWarpSize;
    if (t < 0 || t >= sequence.count) return;
    const float2 gate = __ldcg(place.gates(p) + t * p.hk * p.ratio);
    memory.decay[t] = gate.x;
    memory.beta[t] = gate.y;
    memory.q_factor[t] = memory.k_factor[t] = 1.0F;
  }

  __device__ __forceinline__ void apply_tokens(Tile& tile, const Memory& memory) const {
    if constexpr (kTokens == Tokens::kSubstitution) {
      const SubstitutedTokens tokens = memory.substituted(sequence);
      multiply_tokens<kK, Memory::kPitch>(tokens, warp, kStepStatesWarps, *memory.products);
      __syncthreads();
      run_substitution(tile, Substitution<Memory::kPitch, Tile>{tokens, *memory.products, memory.v, kStepStatesV,
                                                                memory.with_state, kStepStatesV, warp_v});
    } else {
      decode_tokens<kK, kTokens>(tile, memory, sequence.count, kStepStatesV, warp_v, [&](int t) {
        if (!p.snapshots.defined()) return;
        auto* state = static_cast<State*>(p.snapshots.data);
        tile.store_streaming(state + p.snapshots.offset(sequence.row, t, head), p.snapshots.strides[3], warp_v);
      });
    }
  }

  // A warp's outputs are of one token.
  __device__ __forceinline__ void write_output(const Memory& memory, int output, float gate) const {
    if (!is_output(output)) return;
    static_assert(kStepStatesV == 4 * kWarpSize);
    const int t = output / kStepStatesV;
    const int column = output % kStepStatesV;
    float value = memory.v[output];
    if (p.z.defined()) {
      const float4 four = reinterpret_cast<const float4*>(memory.v + t * kStepStatesV)[lane];
      const float squares = warp_sum(four.x * four.x + four.y * four.y + (four.z * four.z + four.w * four.w));
      value *= rsqrtf(squares / static_cast<float>(kStepStatesV) + p.norm_eps) * gate;
    }
    p.y.store(p.y.offset(sequence.row, sequence.place(t), head) + column, value);
  }

  __device__ __forceinline__ void run(float4* shared) {
    const Memory memory(shared, p.most_tokens, kStepStatesV);
    if (!sequence.find(p, place.number)) {
      pdl_wait();
      return;
    }
    Tile tile;
    load_state(tile);
    const int first_output = sequence.first_own() * kStepStatesV + thread;
    std::uint32_t z[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) z[i] = read_z(first_output + i * kStepStatesThreads);
    const std::uint32_t norm_weight = p.z.defined() ? p.norm_weight.read(thread % kStepStatesV) : 0;

    pdl_wait();
    load_tokens(memory);
    load_gates(memory);
    if (p.z.defined()) {
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        output_gates(memory)[thread + i * kStepStatesThreads] = output_gate(z[i], norm_weight);
      }
    }
    __syncthreads();
    apply_tokens(tile, memory);
    if (sequence.slot >= 0) {
      auto* state = static_cast<State*>(p.state_out.data);
      tile.store_streaming(state + p.state_out.offset(sequence.slot, head), p.state_out.strides[2], warp_v);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const float gate = p.z.defined() ? output_gates(memory)[thread + i * kStepStatesThreads] : 0.0F;
      write_output(memory, first_output + i * kStepStatesThreads, gate);
    }
    pdl_trigger();
  }
};

// V = kStepStatesV; 1 to kTogether tokens of a sequence, those that it replays included; with replays by substitution.
template <int kK, class State, Tokens kTokens, class Sequence>
__global__ void __launch_bounds__(kStepStatesThreads, 2) step_states(const __grid_constant__ DecodeStep p) {
  extern __shared__ float4 shared[];
  StepStatesBlock<kK, State, kTokens, Sequence>{p}.run(shared);
}

}  // namespace thalweg::cu
