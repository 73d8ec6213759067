#pragma once

// One token of the fused step for many sequences, V = kStepV, after step_inputs: states, and outputs before their norm.
//
// Roles: warps have a few rows of a state each and share nothing, as in decode_one. If the blocks of a head waited for
//   each other, for the norm, memory would be read and written 10 % more slowly.
// Pipeline: states are loaded while step_inputs still runs.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/step_head.h"

namespace thalweg::cu {

template <class State>
constexpr int kStepOneThreads = kDecodeOneWarps<State>* kWarpSize;
// Blocks of a head.
template <int kK, class State>
constexpr int kStepOneBlocks = kStepV / (kDecodeOneWarps<State> * DecodeOneTile<kK, State>::kWarpV);

// Blocks of the value heads of a key head along x.
template <int kK, class State>
__global__ void __launch_bounds__(kStepOneThreads<State>, sizeof(State) == 4 ? 4 : 7)
    step_one(const __grid_constant__ DecodeStep p) {
  using Tile = DecodeOneTile<kK, State>;
  constexpr int kBlocks = kStepOneBlocks<kK, State>;
  const StepHead place(p, static_cast<int>(blockIdx.x) / kBlocks);
  const int warp =
      static_cast<int>(blockIdx.x) % kBlocks * kDecodeOneWarps<State> + static_cast<int>(threadIdx.x) / kWarpSize;
  const int v0 = warp * Tile::kWarpV;
  RowTokens sequence;
  if (!sequence.find(p, place.number)) {
    pdl_wait();
    return;
  }
  Tile tile;
  if (sequence.slot >= 0) {
    const auto* state = static_cast<const State*>(p.state_in.data);
    tile.load_aligned(state + p.state_in.offset(sequence.slot, place.head), p.state_in.strides[2], v0);
  } else {
    tile.clear();
  }
  const int row = v0 + Tile::own_row();

  pdl_wait();
  const float* const keys = place.keys(p, kK);
  RegisterRow<Tile> q;
  RegisterRow<Tile> k;
#pragma unroll
  for (int j = 0; j < Tile::kSteps; ++j) {
#pragma unroll
    for (int i = 0; i < Tile::kRun; i += 4) {
      const float4 q_four = read_prepared(keys + Tile::k_of(j) + i);
      const float4 k_four = read_prepared(keys + kK + Tile::k_of(j) + i);
      q.x[j][i] = q_four.x, q.x[j][i + 1] = q_four.y, q.x[j][i + 2] = q_four.z, q.x[j][i + 3] = q_four.w;
      k.x[j][i] = k_four.x, k.x[j][i + 1] = k_four.y, k.x[j][i + 2] = k_four.z, k.x[j][i + 3] = k_four.w;
    }
  }
  const float2 gate = __ldcg(place.gates(p));
  const float v = __ldcg(place.values(p, 0) + row);
  const float output = tile.step(k, q, {gate.x, gate.y, 1.0F, 1.0F}, v);
  if (sequence.slot >= 0) {
    auto* state = static_cast<State*>(p.state_out.data);
    tile.store_aligned(state + p.state_out.offset(sequence.slot, place.head), p.state_out.strides[2], v0);
  }
  if (Tile::owns_row() && p.z.defined()) {
    place.outputs(p, 0)[row] = output;
  } else if (Tile::owns_row()) {
    p.y.store(p.y.offset(sequence.row, 0, place.head) + row, output);
  }
  pdl_trigger();
}

}  // namespace thalweg::cu
