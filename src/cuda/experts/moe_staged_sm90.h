#pragma once

// The kernels of moe_ffn's `staged` (moe_staged.h).
//
// Pipeline: the launch of gate and up lets that of down begin once the router's logits are there. Blocks of down then
// choose the experts as well, and copy their weights, before they wait for the activations.

#include "cuda/common/mbarrier.h"
#include "cuda/common/pdl.h"
#include "cuda/experts/choose_experts.h"
#include "cuda/experts/moe_staged.h"
#include "cuda/experts/row_products.h"

namespace thalweg::cu {

// The experts of a token's first `slots` slots, by a whole warp; lane s holds slot s.
struct ChosenSlot {
  int expert;    // among those that are here, or -1
  float weight;  // only if asked for
};
__device__ inline ChosenSlot choose_slot(const MoeMatvecSizes& sizes, int slots, const float* logits, bool weigh,
                                         bool renormalize) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float sum = 0.0F;
  float* const total = weigh && !renormalize ? &sum : nullptr;
  const ChosenExpert chosen = choose_of<kMostStagedExperts>(FreshLogits{logits}, sizes.experts, slots, total);
  ChosenSlot slot{sizes.here.index_of(chosen.id), 0.0F};
  if (weigh) {
    const float largest = __shfl_sync(0xFFFFFFFFU, chosen.logit, 0);
    const float own = lane < slots ? expf(chosen.logit - largest) : 0.0F;
    if (renormalize) sum = warp_sum(own);
    slot.weight = own / sum;
  }
  return slot;
}

// Calls product.operator()<type>() for the format of a slot's weights.
template <DType kType, class Product>
__device__ __forceinline__ void with_slot_type(bool shared, DType shared_type, Product&& product) {
  if (kType != kSharedType && shared && shared_type == kSharedType) {
    product.template operator()<kSharedType>();
  } else if (kType != kOtherSharedType && shared && shared_type == kOtherSharedType) {
    product.template operator()<kOtherSharedType>();
  } else {
    product.template operator()<kType>();
  }
}

// How a warp's lanes share rows of so many blocks.
struct RowLanes {
  int lanes;    // of a row
  int segment;  // blocks that they multiply at a time
  int lane;     // in its row
  int group;    // the row, of `groups` that are multiplied at a time
  int groups;
};
__device__ inline RowLanes lanes_of_rows(int k_blocks) {
  const int lanes = row_lanes(k_blocks);
  const int thread = static_cast<int>(threadIdx.x);
  return {lanes, kLaneBlocks * lanes, thread % lanes, thread % kWarpSize / lanes, kWarpSize / lanes};
}

// ---- gate and up

// The products of a warp's rows of gate and up, and SwiGLU. `rows` holds, of each stage, rows of gate, then of up.
template <DType kType>
__device__ __forceinline__ void gate_up_products(const std::uint8_t* rows, int row_bytes, const uint4* x, int k_blocks,
                                                 MbarrierArray full, float* activated) {
  const auto [lanes, segment, lane, group, groups] = lanes_of_rows(k_blocks);
  FixedBlock even;
  FixedBlock odd;
  LaneBlocks<kType>(k_blocks, 0, lane, lanes).read(x, k_blocks, even, odd);
  int arrived = 0;  // stages
#pragma unroll 1
  for (int first_output = 0; first_output < kStagedOutputs; first_output += groups) {
    const int last_output = min(first_output + groups, kStagedOutputs) - 1;
    for (; arrived <= last_output / kStageOutputs; ++arrived) full[arrived].wait(0);
    const int output = min(first_output + group, last_output);
    const int stage = output / kStageOutputs;
    const std::uint8_t* const gate = rows + (2 * kStageOutputs * stage + output % kStageOutputs) * row_bytes;
    float sum = 0.0F;  // even lanes have gate's, odd ones up's
#pragma unroll 1
    for (int first = 0; first < k_blocks; first += segment) {
      const LaneBlocks<kType> own(k_blocks, first, lane, lanes);
      if (k_blocks > segment) own.read(x, k_blocks, even, odd);
      float values[2];
#pragma unroll
      for (int matrix = 0; matrix < 2; ++matrix) {
        const std::uint8_t* const at = gate + matrix * kStageOutputs * row_bytes;
        values[matrix] = PackedPair<kType>::read(at + own.even_at(), at + own.odd_at(), own.sub_block())
                             .product(own.sub_block(), even, odd);
      }
      sum += sum_pairs(sum_two_of_pairs(values), lanes);
    }
    const float up = __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    if (lane == 0 && first_output + group < kStagedOutputs) activated[output] = sum / (1.0F + expf(-sum)) * up;
  }
}

// Roles: a block computes kStagedGateUpRows outputs of one slot of a token; all warps are alike. The blocks of the
// shared expert come first: they need no choice.
// Shared memory: of each warp and stage, rows of gate, then of up.
template <DType kType>
__global__ void __launch_bounds__(kStagedGateUpThreads, kStagedGateUpBlocks)
    staged_gate_up_kernel(const __grid_constant__ StagedGateUp p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ std::uint64_t barriers[kStagedGateUpWarps][kStages];
  __shared__ int chosen[kWarpSize];
  const MoeMatvecSizes& sizes = p.sizes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const bool shared = static_cast<int>(blockIdx.x) < p.shared_blocks;
  const int block = static_cast<int>(blockIdx.x) - (shared ? 0 : p.shared_blocks);
  const int tiles = (shared ? sizes.shared_inner : sizes.inner) / kStagedGateUpRows;
  const int at = block / tiles;
  const int token = shared ? at : at / sizes.slots;
  const int slot = shared ? sizes.slots : at - token * sizes.slots;
  const int first_row = (block - at * tiles) * kStagedGateUpRows + warp * kStagedOutputs;
  const int row_bytes = shared ? p.shared_gate.row_bytes : p.gate.row_bytes;
  std::uint8_t* const rows = memory + warp * p.stage_bytes;
  const MbarrierArray full{shared_address(barriers[warp])};
  const auto copy = [&](const WeightRows& gate, const WeightRows& up, int expert) {
    const auto bytes = static_cast<std::uint32_t>(kStageOutputs * row_bytes);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      const int row = first_row + kStageOutputs * stage;
      const std::uint32_t to = shared_address(rows) + 2 * stage * bytes;
      full[stage].arrive_expect_tx(2 * bytes);
      bulk_copy(to, gate.row(expert, row), bytes, full[stage]);
      bulk_copy(to + bytes, up.row(expert, row), bytes, full[stage]);
    }
  };
  if (lane == 0) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) full[stage].init(1);
    fence_mbarrier_init();
    if (shared) copy(p.shared_gate, p.shared_up, 0);
  }
  pdl_wait();
  pdl_trigger();  // not before: blocks of down read the logits without a wait of their own
  if (!shared) {
    // As many slots as it takes to know this block's.
    if (warp == 0) chosen[lane] = choose_slot(sizes, slot + 1, p.logits + token * sizes.logits(), false, false).expert;
    __syncthreads();
    const int expert = chosen[slot];
    if (expert < 0) return;  // another rank's
    if (lane == 0) copy(p.gate, p.up, expert);
  } else {
    __syncwarp();
  }
  const int k_blocks = sizes.hidden / 32;
  const uint4* const x = p.x_blocks + token * kFixedBlockVectors * k_blocks;
  float* const activated =
      p.activated + static_cast<std::int64_t>(token) * 32 * sizes.inner_blocks() + slot * sizes.inner + first_row;
  with_slot_type<kType>(shared, p.shared_type, [&]<DType kSlotType>() {
    gate_up_products<kSlotType>(rows, row_bytes, x, k_blocks, full, activated);
  });
}

// ---- down

// Converts the activations of a slot to fixed point, by a warp.
__device__ inline void fix_slot(const float* activated, int k, uint4* blocks) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  constexpr int kFours = 4;  // of a lane, whose reads are in flight together
  constexpr int kStep = 4 * kWarpSize;
#pragma unroll 1
  for (int first = 4 * lane; first - 4 * lane < k; first += kFours * kStep) {
    float4 fours[kFours];
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int at = first + i * kStep;
      fours[i] = at < k ? __ldcg(reinterpret_cast<const float4*>(activated + at)) : float4{};
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int at = first + i * kStep;
      fix_four(fours[i], static_cast<unsigned>(lane % 8), 0xFFFFFFFFU, blocks + at / 32, k / 32, at < k);
    }
  }
  __syncwarp();
}

// products[row] = row . activations for the rows that `rows` holds.
template <DType kType>
__device__ __forceinline__ void down_products(const std::uint8_t* rows, int row_bytes, const uint4* x, int k_blocks,
                                              Mbarrier full, float* products) {
  const auto [lanes, segment, lane, group, groups] = lanes_of_rows(k_blocks);
  FixedBlock even;
  FixedBlock odd;
  LaneBlocks<kType>(k_blocks, 0, lane, lanes).read(x, k_blocks, even, odd);
  full.wait(0);
#pragma unroll 1
  for (int row = group; row < kStagedDownRows; row += groups) {
    const std::uint8_t* const at = rows + row * row_bytes;
    float sum = 0.0F;
#pragma unroll 1
    for (int first = 0; first < k_blocks; first += segment) {
      const LaneBlocks<kType> own(k_blocks, first, lane, lanes);
      if (k_blocks > segment) own.read(x, k_blocks, even, odd);
      const float product = PackedPair<kType>::read(at + own.even_at(), at + own.odd_at(), own.sub_block())
                                .product(own.sub_block(), even, odd);
      sum += sum_pairs(product + __shfl_xor_sync(0xFFFFFFFFU, product, 1), lanes);
    }
    if (lane == 0) products[row] = sum;
  }
}

// Roles: a block computes kStagedDownRows outputs of a token; a warp multiplies them for one slot after the other.
// Shared memory: rows [slots]; activations in fixed point [slots]; products [slots][outputs].
template <DType kType>
__global__ void __launch_bounds__(kStagedDownWarps* kWarpSize, kStagedDownBlocks)
    staged_down_kernel(const __grid_constant__ StagedDown p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ std::uint64_t barriers[kMostMatvecSlots + 1];
  __shared__ int experts[kMostMatvecSlots + 1];
  __shared__ float weights[kMostMatvecSlots + 1];
  const MoeMatvecSizes& sizes = p.sizes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_row = static_cast<int>(blockIdx.x) * kStagedDownRows;
  const int token = static_cast<int>(blockIdx.y);
  const int slots = sizes.all_slots();
  std::uint8_t* const activations = memory + sizes.slots * p.stage_bytes + p.shared_stage_bytes;
  auto* const products = reinterpret_cast<float*>(activations + sizes.inner_blocks() * sizeof(FixedBlock));
  const MbarrierArray full{shared_address(barriers)};
  const auto copy = [&](int slot, const WeightRows& matrix, int expert) {
    const auto bytes = static_cast<std::uint32_t>(kStagedDownRows * matrix.row_bytes);
    full[slot].arrive_expect_tx(bytes);
    bulk_copy(shared_address(memory + slot * p.stage_bytes), matrix.row(expert, first_row), bytes, full[slot]);
  };
  pdl_trigger();
  if (lane == 0) {
    for (int slot = warp; slot < slots; slot += warps) full[slot].init(1);
    fence_mbarrier_init();
    if (slots > sizes.slots && sizes.slots % warps == warp) copy(sizes.slots, p.shared_down, 0);
  }
  // The router's launch has ended: gate and up waited for it before they let this one begin.
  if (warp == 0) {
    const float* const logits = p.logits + token * sizes.logits();
    const ChosenSlot chosen = choose_slot(sizes, sizes.slots, logits, true, p.renormalize);
    if (lane < sizes.slots) experts[lane] = chosen.expert, weights[lane] = chosen.weight;
    if (lane == 0 && slots > sizes.slots) {
      experts[sizes.slots] = 0;
      weights[sizes.slots] = 1.0F / (1.0F + expf(-__ldcg(logits + sizes.experts)));
    }
  }
  __syncthreads();
  if (lane == 0) {
    for (int slot = warp; slot < sizes.slots; slot += warps) {
      if (experts[slot] >= 0) copy(slot, p.down, experts[slot]);
    }
  }
  pdl_wait();
  const float* const activated = p.activated + static_cast<std::int64_t>(token) * 32 * sizes.inner_blocks();
  for (int slot = warp; slot < slots; slot += warps) {
    if (experts[slot] < 0) continue;  // another rank's
    const bool shared = slot == sizes.slots;
    const int k = shared ? sizes.shared_inner : sizes.inner;
    auto* const x = reinterpret_cast<uint4*>(activations) + slot * (sizes.inner / 32) * kFixedBlockVectors;
    fix_slot(activated + slot * sizes.inner, k, x);
    with_slot_type<kType>(shared, p.shared_type, [&]<DType kSlotType>() {
      down_products<kSlotType>(memory + slot * p.stage_bytes, shared ? p.shared_down.row_bytes : p.down.row_bytes, x,
                               k / 32, full[slot], products + slot * kStagedDownRows);
    });
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x);
  if (row >= kStagedDownRows) return;
  float sum = 0.0F;
#pragma unroll 4
  for (int slot = 0; slot < slots; ++slot) {
    const float product = products[slot * kStagedDownRows + row];
    if (experts[slot] >= 0) sum = fmaf(weights[slot], product, sum);
  }
  p.y.store(p.y.offset(token) + first_row + row, sum);
}

}  // namespace thalweg::cu
