#pragma once

// The second launch of moe_ffn's `matvec` (moe_matvec.h): the choice of experts, gate, up and SwiGLU.
//
// Roles: a block computes some outputs of one slot of a token; each of its warps, the rows of gate and up of a few. The
// blocks of the shared expert come first, since they need no choice.
// Shared memory: results of gate and up [2][outputs], a ring for each warp.
// Pipeline: each warp fills its ring with raw rows and waits for no other warp.

#include "cuda/common/pdl.h"
#include "cuda/experts/choose_experts.h"
#include "cuda/experts/moe_matvec.h"

namespace thalweg::cu {

// Chooses the experts of a token, by a whole warp; if `write`, stores them and their weights for the next launch. Lane
// s holds slot s: the expert's index among those that are here, or -1.
__device__ inline int choose(const MoeMatvec& p, int token, bool write) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float* logits = p.logits + token * p.sizes.logits();
  const int slots = p.sizes.slots;
  float sum = 0.0F;
  float* const total = write && !p.renormalize ? &sum : nullptr;
  const ChosenExpert chosen = choose_of<kMostMatvecExperts>(logits, p.sizes.experts, slots, total);
  if (write) {
    const float largest = __shfl_sync(0xFFFFFFFFU, chosen.logit, 0);
    const float own = lane < slots ? expf(chosen.logit - largest) : 0.0F;
    if (p.renormalize) sum = warp_sum(own);
    float* const weights = p.weights + token * p.sizes.all_slots();
    if (lane < slots) {
      p.ids[token * slots + lane] = p.sizes.here.index_of(chosen.id);
      weights[lane] = own / sum;
    }
    if (lane == 0 && p.sizes.shared_inner > 0) weights[slots] = 1.0F / (1.0F + expf(-logits[p.sizes.experts]));
  }
  return p.sizes.here.index_of(chosen.id);
}

template <DType kType>
__global__ void __launch_bounds__(kGateUpThreads, PackedWeights<kType>::kCoded ? 3 : 2)
    moe_gate_up(const __grid_constant__ MoeMatvec p, const __grid_constant__ GateUpShape shape) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ int chosen[kWarpSize];
  const MoeMatvecSizes& sizes = p.sizes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int k_blocks = sizes.hidden / 32;
  const int lanes = row_lanes(k_blocks);
  const int block = static_cast<int>(blockIdx.x);
  const bool shared = block < shape.shared_blocks;
  const int tiles = (shared ? sizes.shared_inner : sizes.inner) / shape.outputs;
  const int at = (shared ? block : block - shape.shared_blocks) / tiles;
  const int tile = (shared ? block : block - shape.shared_blocks) - at * tiles;
  const int token = shared ? at : at / sizes.slots;
  const int slot = shared ? sizes.slots : at - token * sizes.slots;
  const int warp_rows = shape.outputs / kGateUpWarps;
  const int first_row = tile * shape.outputs + warp * warp_rows;
  const WeightRows& gate = shared ? p.shared_gate : p.gate;
  const WeightRows& up = shared ? p.shared_up : p.up;
  pdl_trigger();
  if (shared) {
    prefetch_to_l2(gate.row(0, first_row), warp_rows * gate.row_bytes, thread % kWarpSize, kWarpSize);
    prefetch_to_l2(up.row(0, first_row), warp_rows * up.row_bytes, thread % kWarpSize, kWarpSize);
  }
  pdl_wait();
  int expert = 0;
  if (!shared) {
    if (warp == 0) chosen[thread] = choose(p, token, slot == 0 && tile == 0);
    __syncthreads();
    expert = chosen[slot];
    if (expert < 0) return;  // another rank's
  }

  auto* const results = reinterpret_cast<float*>(memory);
  std::uint8_t* const ring =
      memory + 2 * static_cast<int>(sizeof(float)) * shape.outputs + warp * kRingStages * shape.stage_bytes;
  const RowRuns runs{{gate.row(expert, first_row), up.row(expert, first_row)},
                     2,
                     warp_rows,
                     gate.row_bytes,
                     shared ? shape.shared_chunk : shape.chunk};
  const uint4* const x = p.x_blocks + token * kFixedBlockVectors * k_blocks;
  float* const own = results + warp * warp_rows;
  if (kType != kSharedType && shared && shape.shared_type == kSharedType) {
    row_products<kSharedType>(runs, ring, shape.stage_bytes, x, k_blocks, lanes, own, shape.outputs);
  } else if (kType != kOtherSharedType && shared && shape.shared_type == kOtherSharedType) {
    row_products<kOtherSharedType>(runs, ring, shape.stage_bytes, x, k_blocks, lanes, own, shape.outputs);
  } else {
    row_products<kType>(runs, ring, shape.stage_bytes, x, k_blocks, lanes, own, shape.outputs);
  }
  if (p.fetch_down && !shared) {
    const int rows = sizes.hidden / tiles;
    prefetch_to_l2(p.down.row(expert, tile * rows), static_cast<std::int64_t>(rows) * p.down.row_bytes, thread,
                   kGateUpThreads);
  }
  __syncthreads();
  if (4 * thread >= shape.outputs) return;
  const auto activate = [](float g, float u) { return g / (1.0F + expf(-g)) * u; };
  const float4 g = reinterpret_cast<const float4*>(results)[thread];
  const float4 u = reinterpret_cast<const float4*>(results + shape.outputs)[thread];
  // The blocks of a slot are a row of activations for down.
  uint4* const row = p.activated + (token * sizes.inner_blocks() + slot * (sizes.inner / 32)) * kFixedBlockVectors;
  const int k_block = (tile * shape.outputs + 4 * thread) / 32;
  fix_four({activate(g.x, u.x), activate(g.y, u.y), activate(g.z, u.z), activate(g.w, u.w)}, thread % 8,
           0xFFU << (thread % kWarpSize / 8 * 8), row + k_block, tiles * (shape.outputs / 32));
}

}  // namespace thalweg::cu
