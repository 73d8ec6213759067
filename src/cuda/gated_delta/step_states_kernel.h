#pragma once

// Several tokens of the fused step for many sequences, V = kStepV, after step_inputs: outputs, and states or snapshots.
//
// Roles: a warp holds eight rows of a state, and shares q, k and v with its block. A block has 64 rows, so that as many
//   as fit on a multiprocessor overlap each other's loads, arithmetic and stores. With few heads it has all rows of
//   one, computes the norm of the outputs too, and what step_inputs does not: one more warp finds the tokens' matrices
//   while the others multiply the tokens with the state.
// Pipeline: states are loaded while step_inputs still runs.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/step_head.h"
#include "cuda/gated_delta/step_norm_kernel.h"

namespace thalweg::cu {

// Warps of a block that hold rows, with many or few heads; its threads; and blocks of a head.
template <bool kFew>
constexpr int kStepStatesWarps = kFew ? 16 : 8;
template <bool kFew>
constexpr int kStepStatesThreads = (kStepStatesWarps<kFew> + (kFew ? 1 : 0)) * kWarpSize;
template <bool kFew>
constexpr int kStepStatesBlocks = kStepV / (8 * kStepStatesWarps<kFew>);

// An access of a warp is two rows of 256 bytes.
template <int kK, class State>
using StepStatesTile = std::conditional_t<sizeof(State) == 4, StateTile<kK, StateLayout::kVK, 4, 16>,
                                          StateTile<kK, StateLayout::kVK, kK / 32, kK / 8, 8>>;

// kSnapshots: one token after the other, the state after each to p.snapshots; else by substitution.
template <int kK, class State, bool kSnapshots, bool kFew, class Sequence>
struct StepStatesBlock {
  using Tile = StepStatesTile<kK, State>;
  using Roles = Substitution<kK, Tile, kFew ? 2 : 1>;
  static constexpr int kWarps = kStepStatesWarps<kFew>;
  static constexpr int kThreads = kStepStatesThreads<kFew>;
  static constexpr int kRows = kWarps * Tile::kWarpV;
  static constexpr int kBlocks = kStepStatesBlocks<kFew>;
  static_assert(kRows * kBlocks == kStepV);
  struct Shared {
    float keys[kTogether * Roles::kPitch];
    float values[kTogether][kRows];  // with kFew outputs overwrite them
    TokenGates gates;
    TokenMatrices matrices;
    typename Roles::Scratch scratch[kWarps];
  };
  struct SharedOfFew : Shared {
    TokenSquare with_q, with_k;
    MatrixScratch matrix_scratch;
  };
  using Memory = std::conditional_t<kFew, SharedOfFew, Shared>;

  const DecodeStep& p;
  Memory& shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const bool has_rows = !kFew || warp < kWarps;
  const StepHead place{p, static_cast<int>(blockIdx.x) / kBlocks};
  const int first_row = static_cast<int>(blockIdx.x) % kBlocks * kRows;  // of the block
  const int warp_row = warp * Tile::kWarpV;                              // within it
  Sequence sequence{};

  __device__ __forceinline__ void load_state(Tile& tile) const {
    if (sequence.slot >= 0) {
      const auto* state = static_cast<const State*>(p.state_in.data);
      tile.load_aligned(state + p.state_in.offset(sequence.slot, place.head), p.state_in.strides[2],
                        first_row + warp_row);
    } else {
      tile.clear();
    }
  }

  // Copies what step_inputs computed of the head.
  __device__ __forceinline__ void load_tokens() const {
    constexpr int kFours = 2 * kK / 4;  // of a token
    constexpr int kRounds = (kTogether * kFours + kThreads - 1) / kThreads;
    constexpr int kValueFours = kRows / 4;
    static_assert(kTogether * kValueFours <= kThreads);
    float4 keys[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int i = thread + r * kThreads;
      if (i < sequence.count * kFours) keys[r] = read_prepared(place.keys(p, kK) + 4 * i);
    }
    const int t = thread / kValueFours;
    const int four = thread % kValueFours;
    float4 values{};
    if (t < sequence.count) values = read_prepared(place.values(p, t) + first_row + 4 * four);
    if constexpr (kFew || kSnapshots) {
      const int token = kThreads - 1 - thread;
      if (token < sequence.count) {
        const float2 gate = __ldcg(place.gates(p) + token * p.hk * p.ratio);
        shared.gates.decay[token] = gate.x;
        shared.gates.beta[token] = gate.y;
      }
    } else if (thread < static_cast<int>(sizeof(TokenMatrices) / sizeof(float4))) {
      const auto* const from = reinterpret_cast<const float*>(place.matrices(p));
      reinterpret_cast<float4*>(&shared.matrices)[thread] = read_prepared(from + 4 * thread);
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int i = thread + r * kThreads;
      float* const to = shared.keys + i / kFours * Roles::kPitch + i % kFours * 4;
      if (i < sequence.count * kFours) *reinterpret_cast<float4*>(to) = keys[r];
    }
    if (t < sequence.count) *reinterpret_cast<float4*>(&shared.values[t][4 * four]) = values;
  }

  // Writes token t's output of a row of the warp, for its norm or as it is.
  __device__ __forceinline__ void put(int t, int row, float output) const {
    const int column = first_row + warp_row + row;
    if (kFew && p.z.defined()) {
      shared.values[t][warp_row + row] = output;
    } else if (p.z.defined()) {
      place.outputs(p, t - sequence.first_own())[column] = output;
    } else {
      p.y.store(p.y.offset(sequence.row, sequence.place(t), place.head) + column, output);
    }
  }

  __device__ __forceinline__ void apply_together(Tile& tile) const {
    const Roles roles{shared.keys,    shared.matrices,      shared.scratch[has_rows ? warp : 0],
                      sequence.count, sequence.first_own(), sequence.committed()};
    const auto multiply = [&] {
      roles.multiply(tile, [&](int t, int row) { return shared.values[t][warp_row + row]; });
    };
    if constexpr (kFew) {
      if (!has_rows) find_decays(shared.gates, sequence.count, shared.matrices.decays);
      if (warp < sequence.count) {
        multiply_rows<kK>(shared.keys, shared.keys + kK, Roles::kPitch, warp, shared.with_q, shared.with_k);
      }
      __syncthreads();
      if (has_rows) {
        multiply();
      } else {
        find_matrices(shared.with_k, shared.with_q, shared.gates, sequence.count, sequence.committed(),
                      shared.matrix_scratch, shared.matrices);
      }
      __syncthreads();
      if (!has_rows) return;
    } else {
      multiply();
    }
    roles.solve([&](int t, int row, float output) { put(t, row, output); });
    roles.update(tile);
  }

  __device__ __forceinline__ void apply_one_by_one(Tile& tile) const {
    const int row = Tile::own_row();
#pragma unroll 1
    for (int t = 0; t < sequence.count; ++t) {
      const float* const q = shared.keys + t * Roles::kPitch;
      const TokenScalars scalars{shared.gates.decay[t], shared.gates.beta[t], 1.0F, 1.0F};
      const float output = tile.step(SharedRow{q + kK}, SharedRow{q}, scalars, shared.values[t][warp_row + row]);
      if (Tile::owns_row()) put(t, row, output);
      auto* state = static_cast<State*>(p.snapshots.data);
      tile.store_streaming(state + p.snapshots.offset(sequence.row, t, place.head), p.snapshots.strides[3],
                           first_row + warp_row);
    }
  }

  __device__ __forceinline__ void run() {
    if (!sequence.find(p, place.number)) {
      pdl_wait();
      return;
    }
    Tile tile;
    if (has_rows) load_state(tile);
    OutputNorm norm;
    const int own = sequence.first_own() + warp;  // the token whose outputs the warp norms
    const bool norms = kFew && p.z.defined() && own < sequence.count;
    if (norms) norm.read(p, sequence.row, sequence.place(own), place.head);
    pdl_wait();
    load_tokens();
    __syncthreads();
    if constexpr (kSnapshots) {
      apply_one_by_one(tile);
    } else {
      apply_together(tile);
    }
    if (has_rows && sequence.slot >= 0) {
      auto* state = static_cast<State*>(p.state_out.data);
      tile.store_streaming(state + p.state_out.offset(sequence.slot, place.head), p.state_out.strides[2],
                           first_row + warp_row);
    }
    if constexpr (kFew) {
      __syncthreads();
      if (norms) {
        const float4 outputs = *reinterpret_cast<const float4*>(&shared.values[own][norm.column()]);
        norm.store(p, sequence.row, sequence.place(own), place.head, outputs);
      }
    }
    pdl_trigger();
  }
};

// Blocks of the value heads of a key head along x; 1 to kTogether tokens of a sequence, those that it replays included.
template <int kK, class State, bool kSnapshots, bool kFew, class Sequence>
__global__ void __launch_bounds__(kStepStatesThreads<kFew>, kFew ? 1 : 4)
    step_states(const __grid_constant__ DecodeStep p) {
  using Block = StepStatesBlock<kK, State, kSnapshots, kFew, Sequence>;
  __shared__ __align__(16) typename Block::Memory shared;
  Block{p, shared}.run();
}

}  // namespace thalweg::cu
