#pragma once

// One token of the fused step for many sequences, V = kStepStatesV, after step_inputs: step_one for the states, then
// norm_outputs.
//
// Roles: the warps of step_one have a few rows of a state each and share nothing, as in decode_one. If the blocks of a
//   head waited for each other, for the norm, memory would be read and written 10 % more slowly.
// Pipeline: step_one loads states while step_inputs still runs, and norm_outputs z while step_one does.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/step_head.h"

namespace thalweg::cu {

constexpr int kStepOneThreads = kDecodeOneWarps * kWarpSize;
// Blocks of a head.
template <int kK, class State>
constexpr int kStepOneBlocks = kStepStatesV / (kDecodeOneWarps * DecodeOneTile<kK, State>::kWarpV);

// Blocks of the value heads of a key head along x.
template <int kK, class State>
__global__ void __launch_bounds__(kStepOneThreads, 7) step_one(const __grid_constant__ DecodeStep p) {
  using Tile = DecodeOneTile<kK, State>;
  constexpr int kBlocks = kStepOneBlocks<kK, State>;
  const StepHead place(p, static_cast<int>(blockIdx.x) / kBlocks);
  const int warp = static_cast<int>(blockIdx.x) % kBlocks * kDecodeOneWarps + static_cast<int>(threadIdx.x) / kWarpSize;
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
  const float* const inputs = place.inputs(p);
  RegisterRow<Tile> q;
  RegisterRow<Tile> k;
#pragma unroll
  for (int j = 0; j < Tile::kSteps; ++j) {
#pragma unroll
    for (int i = 0; i < Tile::kRun; i += 4) {
      const float* const from = inputs + place.k_head * kK + Tile::k_of(j) + i;
      const float4 queries = read_prepared(from);
      const float4 keys = read_prepared(from + p.hk * kK);
      q.x[j][i] = queries.x, q.x[j][i + 1] = queries.y, q.x[j][i + 2] = queries.z, q.x[j][i + 3] = queries.w;
      k.x[j][i] = keys.x, k.x[j][i + 1] = keys.y, k.x[j][i + 2] = keys.z, k.x[j][i + 3] = keys.w;
    }
  }
  const float2 gate = __ldcg(place.gates(p));
  const float v = __ldcg(inputs + 2 * p.hk * kK + place.head * kStepStatesV + row);
  const float output = tile.step(k, q, {gate.x, gate.y, 1.0F, 1.0F}, v);
  if (sequence.slot >= 0) {
    auto* state = static_cast<State*>(p.state_out.data);
    tile.store_aligned(state + p.state_out.offset(sequence.slot, place.head), p.state_out.strides[2], v0);
  }
  if (Tile::owns_row() && p.z.defined()) {
    p.outputs[(static_cast<std::int64_t>(place.number) * p.hk * p.ratio + place.head) * kStepStatesV + row] = output;
  } else if (Tile::owns_row()) {
    p.y.store(p.y.offset(sequence.row, 0, place.head) + row, output);
  }
  pdl_trigger();
}

// The gated norm of the outputs, a head by a warp. Heads along x, sequences along y.
__global__ void __launch_bounds__(kStepOneThreads) norm_outputs(const __grid_constant__ DecodeStep p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int head = static_cast<int>(blockIdx.x) * kDecodeOneWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int number = static_cast<int>(blockIdx.y);
  RowTokens sequence;
  if (head >= p.hk * p.ratio || !sequence.find(p, number)) {
    pdl_wait();
    return;
  }
  static_assert(kStepStatesV == 4 * kWarpSize);
  std::uint32_t z[4];
  std::uint32_t weight[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    z[i] = p.z.read(p.z.offset(sequence.row, 0, head) + lane + i * kWarpSize);
    weight[i] = p.norm_weight.read(lane + i * kWarpSize);
  }
  pdl_wait();
  const float* const from = p.outputs + (static_cast<std::int64_t>(number) * p.hk * p.ratio + head) * kStepStatesV;
  float outputs[4];
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) outputs[i] = __ldcg(from + lane + i * kWarpSize);
#pragma unroll
  for (int i = 0; i < 4; ++i) squares = fmaf(outputs[i], outputs[i], squares);
  squares = warp_sum(squares);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    p.y.store(p.y.offset(sequence.row, 0, head) + lane + i * kWarpSize,
              gated_norm(p, outputs[i], squares, z[i], weight[i]));
  }
  pdl_trigger();
}

}  // namespace thalweg::cu
