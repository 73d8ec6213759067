#pragma once

// Products of some rows of a matrix of any format with one row of activations in fixed point, by one warp.

#include "cuda/device/async_copy.h"
#include "cuda/device/fixed_units.h"
#include "cuda/device/warp.h"
#include "cuda/device/weights.h"

namespace thalweg::cu {

// Matrices of one format, one for each expert, whose rows lie together.
struct WeightRows {
  const std::uint8_t* data = nullptr;
  std::int64_t expert_bytes = 0;  // from matrix to matrix
  int row_bytes = 0;              // from row to row
  DType type = DType::kF32;

  __device__ const std::uint8_t* row(int expert, int row) const {
    return data + expert * expert_bytes + static_cast<std::int64_t>(row) * row_bytes;
  }
};

// A lane takes two units of 32 weights of a row at a time, so that this many lanes of a warp share a row.
constexpr int kRowUnits = 2;
__host__ __device__ constexpr int row_lanes(int units) {
  return units <= 8 * kRowUnits ? 8 : (units <= 16 * kRowUnits ? 16 : 32);
}

// Raw rows go through a ring of stages in shared memory that a warp has to itself, a chunk of some whole rows at a
// time. Copies know nothing of formats, and none of them waits for another warp.
constexpr int kRingStages = 3;

// As many rows as fit into a stage: a power of two, at least those that a warp works on at a time.
constexpr int chunk_rows(int row_bytes, int lanes, int most) {
  constexpr int kUsualBytes = 2304;  // two rows of 2048 weights of Q4_K
  int rows = kWarpSize / lanes;
  while (2 * rows <= most && 2 * rows * row_bytes <= kUsualBytes) rows *= 2;
  return rows;
}
// A chunk may begin at any byte of 16.
constexpr int stage_bytes(int row_bytes, int rows) { return (rows * row_bytes + 15 + 15) / 16 * 16; }

// Runs of rows that lie together, one after the other, as a warp takes them: `runs` of `rows` rows each.
struct RowRuns {
  const std::uint8_t* from[2];
  int runs;
  int rows;
  int row_bytes;
  int chunk;  // rows; a multiple of 32 / lanes
};

// Copies some bytes to shared memory, by a warp; there they begin as far behind a multiple of 16 as in memory.
__device__ __forceinline__ void copy_bytes(std::uint32_t to, const std::uint8_t* from, int bytes) {
  const int off = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) & 15);
  const int begin = 16 * (static_cast<int>(threadIdx.x) % kWarpSize);
  constexpr int kStep = 16 * kWarpSize;
  constexpr int kUsualSteps = 5;  // of a stage
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

// Two units of one row and their activations.
template <DType kType>
__device__ inline float pair_product(const std::uint8_t* first, const std::uint8_t* second, int part,
                                     const FixedUnit& even_x, const FixedUnit& odd_x) {
  if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    // Both have the same 32 bytes: one the low, one the high halves, and these stay where they are. Their scales and
    // minimums are neighbours too.
    std::uint32_t head[4];
    read_words<16>(first, head);
    const int quarter = part / 2;
    const std::uint32_t a = head[1] >> (quarter % 2 * 16);
    const std::uint32_t b = head[2] >> (quarter % 2 * 16);
    const std::uint32_t c = head[3] >> (quarter % 2 * 16);
    // The lanes of a warp have all quarters; the compiler would branch around everything that follows.
    std::uint32_t upper = quarter < 2 ? 0U : 0xFFFFFFFFU;
    asm("" : "+r"(upper));
    const std::uint32_t factors = (a & 0x3F3FU & ~upper) | (((c & 0x0F0FU) | (a >> 2 & 0x3030U)) & upper);
    const std::uint32_t minimums = (b & 0x3F3FU & ~upper) | (((c >> 4 & 0x0F0FU) | (b >> 2 & 0x3030U)) & upper);
    std::uint32_t words[8];
    read_words<16>(first + (kType == DType::kQ4_K ? 16 : 48) + quarter * 32, words);
    std::uint32_t fifth[8] = {};
    if constexpr (kType == DType::kQ5_K) read_words<16>(first + 16, fifth);
    int even_high = 0;
    int even_low = 0;
    int odd_high = 0;
    int odd_low = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t even = words[i] & 0x0F0F0F0FU;
      std::uint32_t odd = words[i];
      if constexpr (kType == DType::kQ5_K) {
        even |= (fifth[i] >> part & 0x01010101U) << 4;
        odd = (odd >> 4 & 0x0F0F0F0FU) | (fifth[i] >> part & 0x02020202U) << 3;
      } else {
        odd &= 0xF0F0F0F0U;
      }
      even_high = dot_four(even, even_x.high[i], even_high);
      even_low = dot_four(even, even_x.low[i], even_low);
      odd_high = dot_four(odd, odd_x.high[i], odd_high);
      odd_low = dot_four(odd, odd_x.low[i], odd_low);
    }
    constexpr float kOdd = kType == DType::kQ4_K ? 1.0F / 16 : 1.0F;
    const float even_dot = static_cast<float>(128 * even_high + even_low) * even_x.scale;
    const float odd_dot = static_cast<float>(128 * odd_high + odd_low) * (odd_x.scale * kOdd);
    const float codes = fmaf(static_cast<float>(factors & 0xFFU), even_dot, static_cast<float>(factors >> 8) * odd_dot);
    const float even_sum = even_x.scale * (even_x.sums[0] + even_x.sums[1]);
    const float odd_sum = odd_x.scale * (odd_x.sums[0] + odd_x.sums[1]);
    const float sums =
        fmaf(static_cast<float>(minimums & 0xFFU), even_sum, static_cast<float>(minimums >> 8) * odd_sum);
    return fmaf(low_f16(head[0]), codes, -high_f16(head[0]) * sums);
  } else {
    const auto packed = PackedWeights<kType>::read(first, part);
    const auto next = PackedWeights<kType>::read(second, kBlockWeights<kType> == 256 ? part + 1 : 0);
    return fmaf(even_x.scale, unit_product<kType>(packed, even_x), odd_x.scale * unit_product<kType>(next, odd_x));
  }
}

// products[run][row] = row . activations, by a warp. `x`: the activations' units (fixed_units.h); `ring`: kRingStages
// stages of shared memory.
template <DType kType>
__device__ __forceinline__ void row_products(const RowRuns& rows, std::uint8_t* ring, int ring_stage_bytes,
                                             const uint4* x, int units, int lanes, float* products, int run_products) {
  constexpr bool kPlain = kBlockWeights<kType> == 1;
  constexpr int kUnitBytes = kPlain ? 32 * kBlockBytes<kType> : kBlockBytes<kType>;  // of a block, or a unit
  constexpr int kParts = kPlain ? 1 : kBlockWeights<kType> / 32;                     // units of a block
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int row_in_pass = static_cast<int>(threadIdx.x) % kWarpSize / lanes;
  const int row_step = kWarpSize / lanes;
  const int slice = kRowUnits * lanes;  // units that the lanes take at a time
  const auto chunk_bytes = rows.chunk * rows.row_bytes;

  // What is copied next.
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

  FixedUnit even;
  FixedUnit odd;
  int part = 0;
  int even_at = 0;
  int odd_at = 0;
  const auto read_activations = [&](int first) {
    // Neighbouring units of a block have bytes in common, blocks of one unit are best read side by side. Lanes beyond
    // the end read the last units again, and count for nothing.
    const int even_wanted = first + (kParts > 1 ? kRowUnits * lane : lane);
    const int odd_wanted = first + (kParts > 1 ? kRowUnits * lane + 1 : lane + lanes);
    const int even_unit = min(even_wanted, kParts > 1 ? units - kRowUnits : units - 1);
    const int odd_unit = min(odd_wanted, units - 1);
    even = read_unit(x, units, even_unit);
    odd = read_unit(x, units, odd_unit);
    if (even_wanted >= units) even.scale = 0.0F;
    if (odd_wanted >= units) odd.scale = 0.0F;
    even_at = even_unit / kParts * kUnitBytes;
    odd_at = odd_unit / kParts * kUnitBytes;
    // Written so that it shows that it is even.
    part = kParts > 1 ? even_unit % kParts / kRowUnits * kRowUnits : 0;
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
      for (int first = 0; first < units; first += slice) {
        if (units > slice) read_activations(first);
#pragma unroll 1
        for (int row = row_in_pass; row < rows.chunk; row += row_step) {
          const std::uint8_t* const at = raw + row * rows.row_bytes;
          float sum = pair_product<kType>(at + even_at, at + odd_at, part, even, odd);
          sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
          sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
          sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 4);
          const float quarter = __shfl_xor_sync(0xFFFFFFFFU, sum, 8);
          if (lanes > 8) sum += quarter;
          const float half = __shfl_xor_sync(0xFFFFFFFFU, sum, 16);
          if (lanes > 16) sum += half;
          if (lane == 0) sums[done + row] = first == 0 ? sum : sums[done + row] + sum;
        }
      }
    }
  }
}

// Asks for the lines of some bytes from memory, by `threads` threads of which this one is the `thread`-th.
__device__ inline void prefetch_to_l2(const std::uint8_t* from, std::int64_t bytes, int thread, int threads) {
  constexpr int kLine = 128;
  for (std::int64_t at = kLine * thread; at < bytes; at += kLine * threads) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
  }
}

}  // namespace thalweg::cu
