#pragma once

// Products of rows of a matrix of any format with one row of activations in fixed point, by one warp.

#include "cuda/common/async_copy.h"
#include "cuda/common/warp.h"
#include "cuda/experts/fixed_blocks.h"
#include "cuda/experts/formats/formats.h"

namespace thalweg::cu {

// Matrices of one format, one per expert, with contiguous rows.
struct WeightRows {
  const std::uint8_t* data = nullptr;
  std::int64_t expert_bytes = 0;  // between matrices
  int row_bytes = 0;              // between rows
  DType type = DType::kF32;

  __device__ const std::uint8_t* row(int expert, int row) const {
    return data + expert * expert_bytes + static_cast<std::int64_t>(row) * row_bytes;
  }
};

// A lane multiplies two blocks of 32 weights of a row at a time, so that this many lanes share a row.
constexpr int kLaneBlocks = 2;
__host__ __device__ constexpr int row_lanes(int k_blocks) {
  return k_blocks <= 8 * kLaneBlocks ? 8 : (k_blocks <= 16 * kLaneBlocks ? 16 : 32);
}

// Raw rows pass through a ring of stages in shared memory that one warp owns, a chunk of whole rows per stage. Copies
// do not depend on formats, and no warp waits for another.
constexpr int kRingStages = 3;

// Rows of a chunk: a power of two, at least those that a warp multiplies at a time.
constexpr int chunk_rows(int row_bytes, int lanes, int most) {
  constexpr int kUsualBytes = 2304;  // two rows of 2048 weights in Q4_K
  int rows = kWarpSize / lanes;
  while (2 * rows <= most && 2 * rows * row_bytes <= kUsualBytes) rows *= 2;
  return rows;
}
// A chunk may begin at any byte.
constexpr int stage_bytes(int row_bytes, int rows) { return (rows * row_bytes + 15 + 15) / 16 * 16; }

// Runs of contiguous rows that a warp multiplies one after the other: `runs` of `rows` rows each.
struct RowRuns {
  const std::uint8_t* from[2];
  int runs;
  int rows;
  int row_bytes;
  int chunk;  // rows; a multiple of 32 / lanes
};

// Copies bytes to shared memory, by a warp; their address modulo 16 stays the same.
__device__ __forceinline__ void copy_bytes(std::uint32_t to, const std::uint8_t* from, int bytes) {
  const int off = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) & 15);
  const int begin = 16 * (static_cast<int>(threadIdx.x) % kWarpSize);
  constexpr int kStep = 16 * kWarpSize;
  constexpr int kUsualSteps = 5;  // per stage
  const std::uint8_t* source = from - off + begin;
  to += static_cast<std::uint32_t>(begin);
  int left = off + bytes - begin;
  if ((off + bytes) % 16 == 0) {
    for (; left > 0; left -= kUsualSteps * kStep, source += kUsualSteps * kStep, to += kUsualSteps * kStep) {
#pragma unroll
      for (int i = 0; i < kUsualSteps; ++i) {
        if (left > i * kStep) copy_16_bytes(to + i * kStep, source + i * kStep);
      }
    }
  } else {
#pragma unroll 1
    for (; left > 0; left -= kStep, source += kStep, to += kStep) copy_piece(to, source, left);
  }
}

// A lane's two blocks of 32 weights of a row, of the blocks from `first` on that the lanes multiply at a time. Lanes
// beyond the row's end repeat the last blocks.
template <DType kType>
struct LaneBlocks {
  static constexpr bool kPlain = kBlockWeights<kType> == 1;
  static constexpr int kFormatBlockBytes =
      kPlain ? 32 * kBlockBytes<kType> : kBlockBytes<kType>;  // of a format's block, or of 32 plain weights
  static constexpr int kSubBlocks = kPlain ? 1 : kBlockWeights<kType> / 32;  // blocks of 32 in a format's block
  static constexpr int kEvenStep = kSubBlocks > 1 ? kLaneBlocks : 1;
  int even;
  int odd;
  bool has_even;
  bool has_odd;

  // Neighboring 32 weights of a format's block share bytes; formats with blocks of 32 are best read side by side.
  __device__ LaneBlocks(int k_blocks, int first, int lane, int lanes) {
    const int even_wanted = first + kEvenStep * lane;
    const int odd_wanted = even_wanted + (kSubBlocks > 1 ? 1 : lanes);
    even = min(even_wanted, k_blocks - kEvenStep);
    odd = min(odd_wanted, k_blocks - 1);
    has_even = even_wanted < k_blocks;
    has_odd = odd_wanted < k_blocks;
  }
  // Byte offsets in the row.
  __device__ int even_at() const { return even / kSubBlocks * kFormatBlockBytes; }
  __device__ int odd_at() const { return odd / kSubBlocks * kFormatBlockBytes; }
  // Written so that the compiler sees that it is even; for blocks of 32 it is the zero that
  // PackedWeights<kMXFP4>::read() needs.
  __device__ int sub_block() const {
    return kSubBlocks > 1 ? even % kSubBlocks / kLaneBlocks * kLaneBlocks : even >> 31;
  }
  // Reads the activations; blocks beyond the row's end count as zeros.
  __device__ void read(const uint4* x, int k_blocks, FixedBlock& even_x, FixedBlock& odd_x) const {
    even_x = read_fixed_block(x, k_blocks, even);
    odd_x = read_fixed_block(x, k_blocks, odd);
    order_block<kType>(even_x);
    order_block<kType>(odd_x);
    if (!has_even) even_x.scale = 0.0F;
    if (!has_odd) odd_x.scale = 0.0F;
  }
};

// The sum over `lanes` lanes, 8 or more, of values that pairs of lanes have summed already.
__device__ inline float sum_pairs(float sum, int lanes) {
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 4);
  const float quarter = __shfl_xor_sync(0xFFFFFFFFU, sum, 8);
  if (lanes > 8) sum += quarter;
  const float half = __shfl_xor_sync(0xFFFFFFFFU, sum, 16);
  if (lanes > 16) sum += half;
  return sum;
}

// products[run][row] = row . activations, by a warp. x: the activations' fixed blocks; ring: kRingStages stages of
// shared memory.
template <DType kType>
__device__ __forceinline__ void row_products(const RowRuns& rows, std::uint8_t* ring, int ring_stage_bytes,
                                             const uint4* x, int k_blocks, int lanes, float* products,
                                             int run_products) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int row_in_pass = static_cast<int>(threadIdx.x) % kWarpSize / lanes;
  const int row_step = kWarpSize / lanes;
  const int segment = kLaneBlocks * lanes;  // blocks that the lanes multiply at a time
  const auto chunk_bytes = rows.chunk * rows.row_bytes;

  // The next copy.
  int next_run = 0;
  int next_row = 0;
  int next_stage = 0;
  const std::uint8_t* next_from = rows.from[0];
  const auto push = [&] {
    if (next_run < rows.runs) {
      const int bytes = min(chunk_bytes, (rows.rows - next_row) * rows.row_bytes);
      copy_bytes(shared_address(ring) + static_cast<std::uint32_t>(next_stage * ring_stage_bytes), next_from, bytes);
      next_from += bytes;
      next_row += rows.chunk;
      if (next_row >= rows.rows) next_row = 0, next_from = rows.from[1], ++next_run;
    }
    commit_copies();
    next_stage = next_stage + 1 < kRingStages ? next_stage + 1 : 0;
  };
#pragma unroll 1
  for (int i = 1; i < kRingStages; ++i) push();

  FixedBlock even;
  FixedBlock odd;
  int sub_block = 0;
  int even_at = 0;
  int odd_at = 0;
  const auto read_activations = [&](int first) {
    const LaneBlocks<kType> own(k_blocks, first, lane, lanes);
    own.read(x, k_blocks, even, odd);
    even_at = own.even_at();
    odd_at = own.odd_at();
    sub_block = own.sub_block();
  };
  read_activations(0);
  int stage = 0;
#pragma unroll 1
  for (int run = 0; run < rows.runs; ++run) {
    int off = static_cast<int>(reinterpret_cast<std::uintptr_t>(run == 0 ? rows.from[0] : rows.from[1]) & 15);
    float* const sums = products + run * run_products;
#pragma unroll 1
    for (int done = 0; done < rows.rows; done += rows.chunk) {
      wait_for_copies<kRingStages - 2>();
      __syncwarp();
      push();
      const std::uint8_t* const raw = ring + stage * ring_stage_bytes + off;
      stage = stage + 1 < kRingStages ? stage + 1 : 0;
      off = (off + chunk_bytes) & 15;
#pragma unroll 1
      for (int first = 0; first < k_blocks; first += segment) {
        if (k_blocks > segment) read_activations(first);
#pragma unroll 1
        for (int row = row_in_pass; row < rows.chunk; row += row_step) {
          const std::uint8_t* const at = raw + row * rows.row_bytes;
          float sum = PackedPair<kType>::read(at + even_at, at + odd_at, sub_block).product(sub_block, even, odd);
          sum = sum_pairs(sum + __shfl_xor_sync(0xFFFFFFFFU, sum, 1), lanes);
          if (lane == 0) sums[done + row] = first == 0 ? sum : sums[done + row] + sum;
        }
      }
    }
  }
}

// Prefetches bytes into the L2 cache, by `threads` threads, of which this is the `thread`-th.
__device__ inline void prefetch_to_l2(const std::uint8_t* from, std::int64_t bytes, int thread, int threads) {
  constexpr int kLine = 128;
  for (std::int64_t at = kLine * thread; at < bytes; at += kLine * threads) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
  }
}

}  // namespace thalweg::cu
