// The third launch of moe_ffn for few tokens: down of all of a token's experts and of the shared one, and their sum.

#include <algorithm>

#include "cuda/device/launch_order.h"
#include "cuda/moe_matvec.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

constexpr int kMostWarps = 9;  // of a block: one for each of eight slots and the shared expert
constexpr int kMostBlockRows = kRowPasses * kWarpSize / 8;

struct Down {
  MoeMatvecSizes sizes;
  WeightRows down, shared_down;
  const FixedUnit* activated;
  const std::int32_t* ids;
  const float* weights;
  Elements y;
  int lanes;
};

// A block has some outputs of a token, a warp these of one slot after the other; sums are taken in the order of slots.
__global__ void __launch_bounds__(kMostWarps* kWarpSize, 2) moe_down(const __grid_constant__ Down p) {
  __shared__ float products[kMostMatvecSlots + 1][kMostBlockRows];
  const MoeMatvecSizes& sizes = p.sizes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int lanes = p.lanes;
  const int row_step = kWarpSize / lanes;
  const int block_rows = kRowPasses * row_step;
  const int first_row = static_cast<int>(blockIdx.x) * block_rows;
  const int token = static_cast<int>(blockIdx.y);
  const int all_slots = sizes.all_slots();
  const int row_in_pass = thread % kWarpSize / lanes;
  allow_next_kernel();
  if (sizes.shared_inner > 0 && thread / kWarpSize == sizes.slots % warps) {
    const int rows = min(block_rows, sizes.hidden - first_row);
    prefetch_to_l2(p.shared_down.data + first_row * p.shared_down.row_bytes, rows * p.shared_down.row_bytes,
                   thread % kWarpSize, kWarpSize);
  }
  wait_for_previous_kernel();
  for (int slot = thread / kWarpSize; slot < all_slots; slot += warps) {
    const bool shared = slot == sizes.slots;
    const WeightRows& matrix = shared ? p.shared_down : p.down;
    const std::int64_t expert = shared ? 0 : p.ids[token * sizes.slots + slot];
    const FixedUnit* const x = p.activated + token * sizes.inner_units() + slot * (sizes.inner / 32);
    with_weights(matrix.type, [&]<DType kType>() {
      float sums[kRowPasses];
      row_products<kType>(matrix.data + expert * matrix.expert_bytes, matrix.row_bytes, sizes.hidden,
                          first_row + row_in_pass, row_step, x, (shared ? sizes.shared_inner : sizes.inner) / 32, lanes,
                          sums);
      if (thread % lanes == 0) {
#pragma unroll
        for (int i = 0; i < kRowPasses; ++i) products[slot][row_in_pass + i * row_step] = sums[i];
      }
    });
  }
  __syncthreads();
  const int row = first_row + thread;
  if (thread >= block_rows || row >= sizes.hidden) return;
  const float* const weights = p.weights + token * all_slots;
  float sum = 0.0F;
  for (int slot = 0; slot < all_slots; ++slot) sum = fmaf(weights[slot], products[slot][thread], sum);
  p.y.store(p.y.offset(token) + row, sum);
}

}  // namespace

void launch_moe_down(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream) {
  const MoeMatvecSizes& sizes = p.sizes;
  const int lanes = row_lanes(std::max(sizes.inner, sizes.shared_inner) / 32);
  const int block_rows = kRowPasses * kWarpSize / lanes;
  const Down parameters{sizes, p.down, p.shared_down, p.activated, p.ids, p.weights, p.y, lanes};
  const dim3 grid(static_cast<unsigned>((sizes.hidden + block_rows - 1) / block_rows),
                  static_cast<unsigned>(sizes.tokens));
  launch_early(moe_down, grid, std::min(sizes.all_slots(), kMostWarps) * kWarpSize, 0, device, stream,
               MoeFfnArgs::kName, parameters);
}

}  // namespace thalweg::cu
