#pragma once

// Products of one row of activations with the MXFP4 weights of one expert, on the tensor cores; compute capability 9.0.
//
// Roles: 4 producer warps bring tiles of the rows of one pair by bulk copies; 16 consumer warps each multiply 16 rows
// of a tile by a K tile of 256 columns (mma.m16n8k32, levels as bytes).
// Shared memory: barriers, activations in fixed point, results [columns][rows], a ring of tiles.
// Pipeline: kMxfp4Stages tiles; a full mbarrier and a named barrier for reuse per stage.
//
// Of the eight columns of the mma, two are the byte planes of one block's activations (FixedBlock), zero outside of
// that block: the products of four blocks of a row are four pairs of columns, and each is scaled once.

#include "cuda/common/mbarrier.h"
#include "cuda/common/mma.h"
#include "cuda/common/pdl.h"
#include "cuda/common/warp.h"
#include "cuda/experts/experts.h"
#include "cuda/experts/fixed_blocks.h"
#include "cuda/experts/formats/formats.h"

namespace thalweg::cu {

constexpr int kMxfp4Warps = 16;         // consumers; one block per multiprocessor
constexpr int kMxfp4ProducerWarps = 4;  // issuing a bulk copy takes a thread 45 ns
constexpr int kMxfp4Threads = (kMxfp4Warps + kMxfp4ProducerWarps) * kWarpSize;
constexpr int kMxfp4Rows = 16;  // per warp
// More stages would fill the memory queues at the start, when the first tiles are waited for.
constexpr int kMxfp4Stages = 3;
constexpr int kMxfp4BarrierBytes = 128;
constexpr int kChainBlocks = 4;
constexpr int kChains = 2;                                       // mma chains of kChainBlocks blocks
constexpr int kMxfp4TileK = 32 * kChainBlocks * kChains;         // weights
constexpr int kMxfp4Block = kBlockBytes<DType::kMXFP4>;          // bytes: an exponent, then the codes
constexpr int kMxfp4TileBytes = kMxfp4TileK / 32 * kMxfp4Block;  // a multiple of 8

struct Mxfp4Shape {
  int tiles;        // of a thread block
  int tile_rows;    // kMxfp4Rows for each group of warps that share columns
  int columns_log;  // log2 of the warps that share rows
  int columns;      // K tiles of a row; the other warps of a group idle
  int row_bytes;
  // Rows per bulk copy. Fewer than eight are followed by 16 bytes of padding, so that no two of eight rows begin in the
  // same banks.
  int run;
  int run_bytes;
  int stage_bytes;
  // Offsets in shared memory: barriers, activations, results, tiles.
  int results_at;
  int ring_at;

  __host__ __device__ int row_offset(int row) const { return row / run * run_bytes + row % run * row_bytes; }
};

// The activations of a K tile as right operands.
struct Mxfp4Activations {
  std::uint32_t fragments[kChains][kChainBlocks][2];
  // For block lane % 4 of a chain:
  float scales[kChains];          // of twice the levels
  std::int32_t offsets[kChains];  // initial products: levels have a bias of 12

  // x: the row's fixed blocks in vectors, as read_fixed_block() reads them; `first`: the first block of the K tile.
  __device__ void read(const uint4* x, int k_blocks, int first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int column = lane / 4;
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      const int k_block = first + kChainBlocks * chain;
      const auto word = [&](int half) {
        return reinterpret_cast<const std::uint32_t*>(x + (column % 2 * 2 + half) * k_blocks + k_block +
                                                      column / 2)[lane % 4];
      };
      const std::uint32_t words[2] = {word(0), word(1)};
#pragma unroll
      for (int block = 0; block < kChainBlocks; ++block) {
        const bool own = column / 2 == block;
        fragments[chain][block][0] = own ? __byte_perm(words[0], words[1], 0x5140) : 0;
        fragments[chain][block][1] = own ? __byte_perm(words[0], words[1], 0x7362) : 0;
      }
      const uint4 rest = x[4 * k_blocks + k_block + lane % 4];
      scales[chain] = 0.5F * __uint_as_float(rest.x);
      offsets[chain] = -12 * static_cast<int>(__uint_as_float(rest.y) + __uint_as_float(rest.z));
    }
  }
};

// Adds the lane's products of rows lane / 4 and lane / 4 + 8 with a K tile: those of blocks lane % 4 of the chains.
// k_tile: where that of row lane / 4 begins, at a multiple of 8 bytes; that of the other row is `eight` bytes further.
__device__ __forceinline__ void multiply_mxfp4(const std::uint8_t* k_tile, int eight, const Mxfp4Activations& x,
                                               const Mxfp4Table& table, float (&sums)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const std::uint8_t* const rows[2] = {k_tile, k_tile + eight};
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) {
    std::int32_t products[4] = {0, x.offsets[chain], 0, x.offsets[chain]};
#pragma unroll
    for (int block = 0; block < kChainBlocks; ++block) {
      const int codes_at = (kChainBlocks * chain + block) * kMxfp4Block + 1;
      std::uint32_t positive[4];
      std::uint32_t negative[4];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const auto* const words = reinterpret_cast<const std::uint32_t*>(rows[row] + codes_at / 4 * 4 + 4 * t);
#pragma unroll
        for (int two = 0; two < 2; ++two) {
          // Two bytes of codes, in the low half.
          const int first = codes_at % 4 + 2 * two;
          const std::uint32_t codes =
              first % 4 == 3 ? __funnelshift_r(words[0], words[1], 24) : words[first / 4] >> 8 * (first % 4);
          positive[row + 2 * two] = table.positive(codes);
          negative[row + 2 * two] = table.negative(table.opposite(codes));
        }
      }
      multiply_add_bytes(products, positive, x.fragments[chain][block][0], x.fragments[chain][block][1]);
      multiply_add_bytes(products, negative, x.fragments[chain][block][0], x.fragments[chain][block][1]);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const std::uint32_t exponent = rows[row][(kChainBlocks * chain + t) * kMxfp4Block];
      const auto product = static_cast<float>(128 * products[2 * row] + products[2 * row + 1]);
      sums[row] = fmaf(mxfp4_scale(exponent), x.scales[chain] * product, sums[row]);
    }
  }
}

// The first of the named barriers of stages that have been read.
constexpr int kMxfp4ReadBarrier = 1;

// The consumer warps: multiplies all tiles of the block. x: the activations; results: [columns][block_rows].
__device__ __forceinline__ void consume_tiles(const ExpertMatmul& p, const Mxfp4Shape& shape,
                                              const std::uint8_t* memory, MbarrierArray full, const uint4* x,
                                              float* results, int k_blocks, int rows, int block_rows, int warp,
                                              int lane) {
  const int column = warp & ((1 << shape.columns_log) - 1);
  const bool has_weights = column < shape.columns;
  Mxfp4Activations own;
  if (has_weights) own.read(x, k_blocks, column * (kMxfp4TileK / 32));
  const Mxfp4Table table(static_cast<std::uint32_t>((lane | p.k) >> 31));
  const int warp_row = (warp >> shape.columns_log) * kMxfp4Rows + lane / 4;
  const std::uint8_t* const own_k_tile = memory + shape.ring_at + shape.row_offset(warp_row) + column * kMxfp4TileBytes;
  const int eight = shape.row_offset(warp_row + 8) - shape.row_offset(warp_row);
  float* own_results = results + column * block_rows + warp_row + lane % 2 * 8;
  RingStage stage;
#pragma unroll 1
  for (int row = 0; row < rows; row += shape.tile_rows) {
    full[stage.index].wait(stage.parity);
    float sums[2] = {};
    if (has_weights) multiply_mxfp4(own_k_tile + stage.index * shape.stage_bytes, eight, own, table, sums);
    if (row + kMxfp4Stages * shape.tile_rows < rows) {
      named_barrier_arrive(kMxfp4ReadBarrier + stage.index, kMxfp4Threads);
    }
    stage.advance(kMxfp4Stages);
    // The sums of four lanes; even lanes get the first row's, odd lanes the second's.
    float sum = sum_two_of_pairs(sums);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    if (has_weights && lane % 4 < 2) *own_results = sum;
    own_results += shape.tile_rows;
  }
}

__global__ void __launch_bounds__(kMxfp4Threads, 1)
    mxfp4_matvec_kernel(const __grid_constant__ ExpertMatmul p, const __grid_constant__ Mxfp4Shape shape) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::uint8_t memory[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const bool multiplies = warp < kMxfp4Warps;
  const int slot = static_cast<int>(blockIdx.y);
  const int token = static_cast<int>(blockIdx.z);
  const int k_blocks = p.k / 32;
  const int block_rows = shape.tiles * shape.tile_rows;
  const int block_row = static_cast<int>(blockIdx.x) * block_rows;
  const int rows = min(p.n - block_row, block_rows);
  auto* const x = reinterpret_cast<uint4*>(memory + kMxfp4BarrierBytes);      // [kFixedBlockVectors][k_blocks]
  auto* const results = reinterpret_cast<float*>(memory + shape.results_at);  // [columns][block_rows]
  const MbarrierArray full{shared_address(memory)};                           // a stage holds its tile

  if (thread == 0) {
    for (int i = 0; i < kMxfp4Stages; ++i) full[i].init(1);
    fence_mbarrier_init();
  }
  __syncthreads();
  pdl_trigger_and_wait();
  const std::int64_t x_row = p.x.offset(token, p.x_per_slot ? slot : 0);
  RawActivations<kMxfp4Warps, kMxfp4TileK / (4 * kWarpSize)> raw;
  if (multiplies) raw.read(p.x, x_row, 0, p.k);
  const int expert = p.ids.of(token, slot);
  if (expert < 0) return report_missing_expert(p.ids, expert);

  RingStage stage;
  // Each producer thread copies a run of rows of each tile.
  const int run = lane * kMxfp4ProducerWarps + warp - kMxfp4Warps;
  const auto copy_tile = [&](int row) {
    const int first = row + run * shape.run;
    const int last = min(row + shape.tile_rows, rows);
    const int own_bytes = min(last - first, shape.run) * shape.row_bytes;
    if (run == 0) full[stage.index].arrive_expect_tx(static_cast<std::uint32_t>((last - row) * shape.row_bytes));
    if (own_bytes > 0) {
      bulk_copy_evict_first(
          shared_address(memory + shape.ring_at + stage.index * shape.stage_bytes + run * shape.run_bytes),
          p.weights + expert * p.expert_bytes + static_cast<std::int64_t>(block_row + first) * shape.row_bytes,
          static_cast<std::uint32_t>(own_bytes), full[stage.index]);
    }
    __syncwarp();
    stage.advance(kMxfp4Stages);
  };
  if (multiplies) {
    raw.fix(0, p.k, x, 1, k_blocks);
  } else {
    copy_tile(0);
  }
  __syncthreads();
  if (!multiplies) {
    for (int row = shape.tile_rows; row < rows; row += shape.tile_rows) {
      if (row >= kMxfp4Stages * shape.tile_rows) named_barrier(kMxfp4ReadBarrier + stage.index, kMxfp4Threads);
      copy_tile(row);
    }
  } else {
    consume_tiles(p, shape, memory, full, x, results, k_blocks, rows, block_rows, warp, lane);
  }
  __syncthreads();
  const std::int64_t y = p.y.offset(token, slot);
  for (int row = thread; row < rows; row += kMxfp4Threads) {
    float sum = 0.0F;
#pragma unroll 4
    for (int i = 0; i < shape.columns; ++i) sum += results[i * block_rows + row];
    store_result(p, y + block_row + row, block_row + row, sum);
  }
#endif
}

}  // namespace thalweg::cu
