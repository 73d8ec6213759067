// The third launch of moe_ffn for few tokens: down of all of a token's experts and of the shared one, and their sum.

#include <algorithm>

#include "cuda/device/launch_order.h"
#include "cuda/moe_matvec.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

constexpr int kMostWarps = 9;  // of a block: one for each of eight slots and the shared expert
constexpr int kMostBlockRows = 64;

struct Down {
  MoeMatvecSizes sizes;
  int block_rows;
  int stage_bytes;
  int lanes, shared_lanes;
  int chunk, shared_chunk;  // rows
  WeightRows down, shared_down;
  const uint4* activated;
  const std::int32_t* ids;
  const float* weights;
  Elements y;
};

// A block has some outputs of a token, a warp these of one slot after the other; sums are taken in the order of slots.
__global__ void __launch_bounds__(kMostWarps* kWarpSize, 2) moe_down(const __grid_constant__ Down p) {
  extern __shared__ __align__(16) std::uint8_t rings[];
  __shared__ float products[kMostMatvecSlots + 1][kMostBlockRows];
  const MoeMatvecSizes& sizes = p.sizes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int first_row = static_cast<int>(blockIdx.x) * p.block_rows;
  const int rows = min(p.block_rows, sizes.hidden - first_row);
  const int token = static_cast<int>(blockIdx.y);
  const int all_slots = sizes.all_slots();
  allow_next_kernel();
  if (sizes.shared_inner > 0 && warp == sizes.slots % warps) {
    prefetch_to_l2(p.shared_down.data + first_row * p.shared_down.row_bytes, rows * p.shared_down.row_bytes,
                   thread % kWarpSize, kWarpSize);
  }
  wait_for_previous_kernel();
  for (int slot = warp; slot < all_slots; slot += warps) {
    const bool shared = slot == sizes.slots;
    const WeightRows& matrix = shared ? p.shared_down : p.down;
    const std::int64_t expert = shared ? 0 : p.ids[token * sizes.slots + slot];
    const RawRows raw{matrix.data + expert * matrix.expert_bytes + first_row * matrix.row_bytes, rows,
                      static_cast<int>(matrix.row_bytes), shared ? p.shared_chunk : p.chunk};
    const uint4* const x = p.activated + (token * sizes.inner_units() + slot * (sizes.inner / 32)) * kUnitPieces;
    wait_for_copies<0>();
    __syncwarp();
    RowRing ring(rings + warp * kRingStages * p.stage_bytes, p.stage_bytes, kRingStages);
    RowPushes push(ring, raw);
    for (int i = 1; i < kRingStages; ++i) push();
    with_weights(matrix.type, [&]<DType kType>() {
      row_products<kType, 1>(ring, push, raw, x, (shared ? sizes.shared_inner : sizes.inner) / 32,
                             shared ? p.shared_lanes : p.lanes, products[slot]);
    });
  }
  __syncthreads();
  if (thread >= rows) return;
  const float* const weights = p.weights + token * all_slots;
  float sum = 0.0F;
  for (int slot = 0; slot < all_slots; ++slot) sum = fmaf(weights[slot], products[slot][thread], sum);
  p.y.store(p.y.offset(token) + first_row + thread, sum);
}

}  // namespace

void launch_moe_down(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream) {
  const MoeMatvecSizes& sizes = p.sizes;
  // Blocks of at most 64 rows, of fewer if they would leave the device idle.
  int block_rows = kMostBlockRows;
  while (block_rows > 16 && sizes.tokens * sizes.hidden < 2 * device.multiprocessors * block_rows) block_rows /= 2;
  const int lanes = row_lanes(sizes.inner / 32);
  const int shared_lanes = row_lanes(sizes.shared_inner / 32);
  const int chunk = chunk_rows(p.down.row_bytes, lanes, block_rows);
  const int shared_chunk = chunk_rows(p.shared_down.row_bytes, shared_lanes, block_rows);
  const int bytes = std::max(stage_bytes(p.down.row_bytes, chunk), stage_bytes(p.shared_down.row_bytes, shared_chunk));
  const Down parameters{sizes,  block_rows,    bytes,       lanes, shared_lanes, chunk, shared_chunk,
                        p.down, p.shared_down, p.activated, p.ids, p.weights,    p.y};
  const int warps = std::min(sizes.all_slots(), kMostWarps);
  const auto shared = static_cast<std::size_t>(warps * kRingStages * bytes);
  if (shared > 36 * 1024) allow_shared_memory(reinterpret_cast<const void*>(moe_down), shared, MoeFfnArgs::kName);
  const dim3 grid(static_cast<unsigned>((sizes.hidden + block_rows - 1) / block_rows),
                  static_cast<unsigned>(sizes.tokens));
  launch_early(moe_down, grid, static_cast<unsigned>(warps * kWarpSize), shared, device, stream, MoeFfnArgs::kName,
               parameters);
}

}  // namespace thalweg::cu
