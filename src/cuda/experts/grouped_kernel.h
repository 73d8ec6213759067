#pragma once

// The products of moe_ffn's `grouped` (grouped.h): gate, up and SwiGLU, or down.
//
// Roles: a block multiplies some rows of an item's matrices with the activations of its tokens. A warp multiplies 32
// rows at a time, of gate and up 16 each; where there are few items, warps share rows and divide the columns.
// Shared memory: the records of the item's activations, written by all warps once; for each warp a ring of raw K tiles,
// afterwards the sums of warps that share rows.
// Pipeline: a warp fills its ring by cp.async and waits for no other.
//
// Every launch of gate and up lets the next begin only when the choice has ended, so that whatever comes after it may
// read the items at once: down fills its rings before gate and up have ended. Experts of one format and a shared expert
// of another are two launches side by side: the second one (waits = false) begins when all blocks of the first have
// what they depend on, and waits for the first only at its end.

#include "cuda/common/pdl.h"
#include "cuda/experts/byte_products.h"
#include "cuda/experts/byte_rows.h"
#include "cuda/experts/grouped.h"

namespace thalweg::cu {

// Waits for the first of the last `stages` groups of this thread's copies.
__device__ inline void wait_for_first_of(int stages) {
  switch (stages) {
    case 2:
      return wait_for_copies<1>();
    case 3:
      return wait_for_copies<2>();
    case 4:
      return wait_for_copies<3>();
    case 5:
      return wait_for_copies<4>();
    default:
      return wait_for_copies<kMostGroupedStages - 1>();
  }
}

// A block's share of a product.
template <bool kDown>
struct GroupedBlock {
  const GroupedProduct& p;
  const GroupedSide& side;
  ExpertItem item;
  int slab;
  std::uint8_t* memory;

  static constexpr int kWarpRows = kDown ? 32 : 16;  // of each matrix
  static constexpr int kMatrices = 2;                // of 16 rows: gate and up, or both halves of the rows of down

  __device__ bool shared() const { return item.expert == kSharedItem; }
  __device__ int row(int column) const {  // of the activations, by pair or token
    return shared() ? item.begin + column : p.items.pairs[item.begin + column];
  }

  // Writes the records of the item's activations to shared memory; gate and up by copies that the caller commits.
  __device__ void copy_records() const {
    const int vectors = side.k_tiles * (kFixedRecordBytes / 16);  // of a row
    const int pitch = grouped_x_pitch(side.k_tiles);
    const auto* const from = static_cast<const std::uint8_t*>(p.x);
    for (int column = 0; column < item.count; ++column) {
      const int token = shared() ? item.begin + column : p.items.pairs[item.begin + column] / p.slots;
      const std::uint8_t* const record = from + static_cast<std::int64_t>(token) * vectors * 16;
      const std::uint32_t to = shared_address(memory + column * pitch);
      for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kGroupedThreads) {
        copy_16_bytes(to + static_cast<std::uint32_t>(16 * i), record + 16 * i);
      }
    }
  }
  __device__ void write_records() const {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int pitch = grouped_x_pitch(side.k_tiles);
    const auto* const from = static_cast<const float*>(shared() ? p.shared_x : p.x);
    const FixedLane<> lane;
    for (int i = warp; i < item.count * side.k_tiles; i += kGroupedWarps) {
      const int column = i / side.k_tiles;
      const int k_tile = i - column * side.k_tiles;
      const float* const x = from + (static_cast<std::int64_t>(row(column)) * side.k_tiles + k_tile) * kFixedTileK;
      const float4 a = load_four(x + lane.first());
      const float4 b = load_four(x + lane.first() + 16);
      write_fixed_record({a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w},
                         memory + column * pitch + k_tile * kFixedRecordBytes);
    }
  }

  template <int kTiles>
  __device__ void store(const float (&sums)[kMatrices][kTiles][2], const int (&rows)[kTiles], int first_row) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int g = lane / 4;
    const int t = lane % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (4 * n + t >= item.count) continue;
      const std::int64_t at = static_cast<std::int64_t>(rows[n]) * side.n + first_row + g;
      if constexpr (kDown) {
        Bf16* const to = static_cast<Bf16*>(shared() ? p.shared_y : p.y) + at;
#pragma unroll
        for (int i = 0; i < 4; ++i) to[8 * i] = from_f32<Bf16>(sums[i / 2][n][i % 2]);
      } else {
        float* const to = static_cast<float*>(shared() ? p.shared_y : p.y) + at;
#pragma unroll
        for (int i = 0; i < 2; ++i) to[8 * i] = sums[0][n][i] / (1.0F + expf(-sums[0][n][i])) * sums[1][n][i];
      }
    }
  }

  template <DType kType, int kTiles>
  __device__ void multiply() const {
    using Rows = ByteRows<kType>;
    const int thread = static_cast<int>(threadIdx.x);
    const int warp = thread / kWarpSize;
    const int lane = thread % kWarpSize;
    const int unit = warp / side.k_warps;
    const int first_k_tile = warp - unit * side.k_warps;
    const int expert = shared() ? 0 : item.expert;
    const int x_pitch = grouped_x_pitch(side.k_tiles);
    std::uint8_t* const rings = memory + p.items.item_tokens * x_pitch;
    std::uint8_t* const ring = rings + warp * side.stages * side.stage_bytes;
    const int row_bytes = side.first.row_bytes;
    const std::uint8_t* const first = side.first.row(expert, 0);
    const std::uint8_t* const second = kDown ? first + 16 * row_bytes : side.second.row(expert, 0);
    const std::uint8_t* const first_end = side.first.row(side.experts - 1, side.n);
    const std::uint8_t* const second_end = kDown ? first_end : side.second.row(side.experts - 1, side.n);
    const Rows copies(row_bytes);

    const int own_k_tiles = (side.k_tiles - first_k_tile + side.k_warps - 1) / side.k_warps;
    const int begin = slab * side.block_rows() + unit * kWarpRows;
    const int stride = side.units * kWarpRows;  // of a group
    const int groups =
        unit < side.units && begin < side.n ? min(side.groups, (side.n - begin + stride - 1) / stride) : 0;
    const int steps = 2 * groups * own_k_tiles;  // K tiles of both matrices in turn
    // The next copy.
    const std::uint8_t* next_first = first + static_cast<std::int64_t>(begin) * row_bytes;
    const std::uint8_t* next_second = second + static_cast<std::int64_t>(begin) * row_bytes;
    int next_k_tile = first_k_tile;
    int next_stage = 0;
    int copied = 0;
    const auto copy_next = [&] {
      if (copied < steps) {
        const std::uint32_t to = shared_address(ring + next_stage * side.stage_bytes);
        next_stage = next_stage + 1 < side.stages ? next_stage + 1 : 0;
        if (copied++ % 2 == 0) {
          copies.copy(next_first + next_k_tile * Rows::kTileBytes, first_end, to);
        } else {
          copies.copy(next_second + next_k_tile * Rows::kTileBytes, second_end, to);
          next_k_tile += side.k_warps;
          if (next_k_tile >= side.k_tiles) {
            next_k_tile = first_k_tile;
            next_first += static_cast<std::int64_t>(stride) * row_bytes;
            next_second += static_cast<std::int64_t>(stride) * row_bytes;
          }
        }
      }
      commit_copies();
    };
    if constexpr (!kDown) copy_records();
    for (int i = 0; i < side.stages; ++i) copy_next();
    if constexpr (kDown) {
      if (p.waits) pdl_wait(), pdl_trigger();
      write_records();
    } else {
      wait_for_first_of(side.stages);
    }
    int rows[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) rows[n] = row(min(4 * n + lane % 4, item.count - 1));
    __syncthreads();

    float sums[kMatrices][kTiles][2] = {};
    int row = begin;
    int k_tile = first_k_tile;
    int stage = 0;
    for (int step = 0; step < steps; step += 2) {
#pragma unroll
      for (int i = 0; i < kMatrices; ++i) {
        wait_for_first_of(side.stages);
        __syncwarp();
        const std::uint8_t* const source = i == 0 ? first : second;
        const auto tile = [&](int of_tile) {
          return ring + stage * side.stage_bytes + of_tile * Rows::kPitch +
                 Rows::misalignment(source + static_cast<std::int64_t>(row + of_tile) * row_bytes +
                                    k_tile * Rows::kTileBytes);
        };
        multiply_bytes<kType, kTiles>(tile(lane / 4), tile(lane / 4 + 8), memory + k_tile * kFixedRecordBytes, x_pitch,
                                      sums[i]);
        __syncwarp();  // the stage has been read
        copy_next();
        stage = stage + 1 < side.stages ? stage + 1 : 0;
      }
      k_tile += side.k_warps;
      if (k_tile < side.k_tiles) continue;
      k_tile = first_k_tile;
      if (side.k_warps > 1) continue;
      store(sums, rows, row);
      row += stride;
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) sums[i / (2 * kTiles)][i / 2 % kTiles][i % 2] = 0.0F;
    }
    if (side.k_warps == 1) return;

    // The sums of the warps that share rows, in order.
    constexpr int kSums = 4 * kTiles;
    auto* const own = reinterpret_cast<float*>(ring) + lane;
    if (groups > 0) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) own[i * kWarpSize] = sums[i / (2 * kTiles)][i / 2 % kTiles][i % 2];
    }
    __syncthreads();
    if (first_k_tile != 0 || groups == 0) return;
    for (int other = 1; other < min(side.k_warps, side.k_tiles); ++other) {
      const auto* const theirs = reinterpret_cast<const float*>(ring + other * side.stages * side.stage_bytes) + lane;
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i / (2 * kTiles)][i / 2 % kTiles][i % 2] += theirs[i * kWarpSize];
    }
    store(sums, rows, begin);
  }
};

template <DType kType, bool kDown>
__global__ void __launch_bounds__(kGroupedThreads, 2) grouped_product_kernel(const __grid_constant__ GroupedProduct p) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  if constexpr (!kDown) {
    if (p.waits) pdl_wait();
  }
  if (!kDown || !p.waits) pdl_trigger();
  const int of_grid = static_cast<int>(blockIdx.x) / p.item_blocks;
  const int slab = static_cast<int>(blockIdx.x) - of_grid * p.item_blocks;
  const int index = p.first_item + of_grid;
  const ExpertItem item = p.items.items[index];  // undefined beyond the last one
  const GroupedSide& side = index < p.shared_items ? p.shared : p.experts;
  if (index < *p.items.count && slab < side.blocks()) {
    const GroupedBlock<kDown> block{p, side, item, slab, memory};
    item.count <= 4 ? block.template multiply<kType, 1>() : block.template multiply<kType, 2>();
  } else if (kDown && p.waits) {
    pdl_wait();
  }
  if (!p.waits) pdl_wait();
}

}  // namespace thalweg::cu
