#pragma once

// The third launch of moe_ffn's `matvec` (moe_matvec.h): down, and the sum over slots.
//
// Roles: a block computes some outputs of a token; a warp multiplies them for one slot after the other.
// Shared memory: products [slots][outputs], a ring for each warp.
// Pipeline: each warp fills its ring with raw rows and waits for no other warp. Sums are taken in the order of slots.

#include "cuda/common/pdl.h"
#include "cuda/experts/moe_matvec.h"

namespace thalweg::cu {

template <DType kType>
__global__ void __launch_bounds__(kMostDownWarps* kWarpSize, PackedWeights<kType>::kCoded ? 2 : 1)
    moe_down(const __grid_constant__ MoeMatvec p, const __grid_constant__ DownShape shape) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const MoeMatvecSizes& sizes = p.sizes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int first_row = static_cast<int>(blockIdx.x) * shape.outputs;
  const int rows = min(shape.outputs, sizes.hidden - first_row);
  const int token = static_cast<int>(blockIdx.y);
  auto* const products = reinterpret_cast<float*>(memory);
  std::uint8_t* const ring = memory +
                             (shape.last_slot - shape.first_slot) * static_cast<int>(sizeof(float)) * shape.outputs +
                             warp * kRingStages * shape.stage_bytes;
  pdl_trigger();
  if (shape.last_slot > sizes.slots && warp == (sizes.slots - shape.first_slot) % warps) {
    prefetch_to_l2(p.shared_down.row(0, first_row), rows * p.shared_down.row_bytes, thread % kWarpSize, kWarpSize);
  }
  pdl_wait();
  for (int slot = shape.first_slot + warp; slot < shape.last_slot; slot += warps) {
    const bool shared = slot == sizes.slots;
    const WeightRows& matrix = shared ? p.shared_down : p.down;
    const int expert = shared ? 0 : p.ids[token * sizes.slots + slot];
    if (expert < 0) continue;  // another rank's
    const RowRuns runs{
        {matrix.row(expert, first_row), nullptr}, 1, rows, matrix.row_bytes, shared ? shape.shared_chunk : shape.chunk};
    const uint4* const x =
        p.activated + (token * sizes.inner_blocks() + slot * (sizes.inner / 32)) * kFixedBlockVectors;
    const int k_blocks = (shared ? sizes.shared_inner : sizes.inner) / 32;
    float* const own = products + (slot - shape.first_slot) * shape.outputs;
    __syncwarp();  // the ring's last chunk has been read
    if (kType != kSharedType && shared && shape.shared_type == kSharedType) {
      row_products<kSharedType>(runs, ring, shape.stage_bytes, x, k_blocks, row_lanes(k_blocks), own, 0);
    } else if (kType != kOtherSharedType && shared && shape.shared_type == kOtherSharedType) {
      row_products<kOtherSharedType>(runs, ring, shape.stage_bytes, x, k_blocks, row_lanes(k_blocks), own, 0);
    } else {
      row_products<kType>(runs, ring, shape.stage_bytes, x, k_blocks, row_lanes(k_blocks), own, 0);
    }
  }
  __syncthreads();
  if (thread >= rows) return;
  const float* const weights = p.weights + token * sizes.all_slots();
  const std::int64_t at = static_cast<std::int64_t>(token) * sizes.hidden + first_row + thread;
  float sum = shape.add_shared ? p.shared_products[at] : 0.0F;
  for (int slot = shape.first_slot; slot < shape.last_slot; ++slot) {
    if (slot < sizes.slots && p.ids[token * sizes.slots + slot] < 0) continue;
    sum = fmaf(weights[slot], products[(slot - shape.first_slot) * shape.outputs + thread], sum);
  }
  if (shape.only_shared) {
    p.shared_products[at] = sum;
  } else {
    p.y.store(p.y.offset(token) + first_row + thread, sum);
  }
}

}  // namespace thalweg::cu
