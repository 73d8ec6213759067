#pragma once

// The row lists of the experts: a counting sort of the pairs of token and slot. Block 0 writes the tables that follow
// from the counts: offsets, work items, tiles. Each other block writes the rows of a segment of the pairs. No block
// waits for another: each counts all pairs. Shared memory: counters, one for each expert and counting warp.

#include <algorithm>

#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/experts/experts.h"

namespace thalweg::cu {

constexpr int kPrepareThreads = 1024;
constexpr int kPrepareWarps = kPrepareThreads / kWarpSize;
// Every GPU from 8.0 on has this much, and some more for the scan.
constexpr std::int64_t kCounterBytes = 160 * 1024;

// How the pairs are divided between blocks and warps.
struct PairSegments {
  int blocks = 0;
  int warps = 0;  // of a block
  int pairs = 0;  // of a warp

  __host__ __device__ int block_pairs() const { return warps * pairs; }
  // Counters of each expert: the block's warps, between the pairs before and after the block's.
  __host__ __device__ int first_warp() const { return blocks > 1 ? 1 : 0; }
  __host__ __device__ int counts() const { return warps + 2 * first_warp(); }
};

// Few pairs use few warps, since all counters of an expert are read. Scattered stores limit a block; counting more
// often is cheap.
inline PairSegments cut_pairs(int experts, int pairs) {
  constexpr int kPairsPerWarp = 128;
  constexpr int kPairsPerBlock = 1024;
  constexpr int kMostBlocks = 64;
  const auto fit = static_cast<int>(std::min<std::int64_t>(kCounterBytes / (4 * std::int64_t{experts}), kPrepareWarps));
  const auto ceil_div = [](int of, int each) { return (of + each - 1) / each; };
  PairSegments result;
  const int blocks = fit < 3 ? 1 : std::clamp(ceil_div(pairs, kPairsPerBlock), 1, kMostBlocks);
  const int share = ceil_div(pairs, blocks);
  result.warps = std::clamp(ceil_div(share, kPairsPerWarp), 1, std::max(1, blocks > 1 ? fit - 2 : fit));
  result.pairs = std::max(1, ceil_div(share, result.warps * kWarpSize)) * kWarpSize;
  result.blocks = std::max(1, ceil_div(pairs, result.block_pairs()));
  return result;
}

// Exclusive sums of rows and items over the block's threads, and the totals.
struct RowsAndItems {
  int rows;
  int items;
};
__device__ inline RowsAndItems operator+(RowsAndItems a, RowsAndItems b) {
  return {a.rows + b.rows, a.items + b.items};
}
__device__ inline RowsAndItems warp_scan(RowsAndItems value, int lane) {
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const RowsAndItems other{__shfl_up_sync(0xFFFFFFFFU, value.rows, distance),
                             __shfl_up_sync(0xFFFFFFFFU, value.items, distance)};
    if (lane >= distance) value = value + other;
  }
  return value;
}
__device__ inline RowsAndItems block_scan(RowsAndItems value, RowsAndItems* warp_sums, RowsAndItems& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const RowsAndItems own = warp_scan(value, lane);
  __syncthreads();  // warp_sums may still be read
  if (lane == kWarpSize - 1) warp_sums[warp] = own;
  __syncthreads();
  const RowsAndItems all = warp_scan(warp_sums[lane], lane);
  const auto of_warp = [&](int w) {
    return RowsAndItems{__shfl_sync(0xFFFFFFFFU, all.rows, w), __shfl_sync(0xFFFFFFFFU, all.items, w)};
  };
  total = of_warp(kPrepareWarps - 1);
  const RowsAndItems before = of_warp(warp > 0 ? warp - 1 : 0);
  const RowsAndItems here = warp > 0 ? before : RowsAndItems{0, 0};
  return {here.rows + own.rows - value.rows, here.items + own.items - value.items};
}
static_assert(kPrepareWarps == kWarpSize);

// Reads the experts of the pairs `pair`, `pair + kStep`, ... below `end`; -1 beyond `end` and for an expert that
// is not here, kWrongExpert for an id out of range.
constexpr int kAtOnce = 8;
template <int kStep>
__device__ inline void read_ids(const ExpertIds& ids, int pair, int end, int (&experts)[kAtOnce]) {
  const auto read = [&](auto id_of) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) experts[i] = pair + i * kStep < end ? id_of(pair + i * kStep) : -1;
  };
  // Only loads in the loop, so that none waits for the one before.
  if (ids.data == nullptr) {
    read([](int) { return 0; });
  } else if (ids.stride == ids.slots) {
    read([&](int at) { return ids.data[at]; });
  } else {
    read([&](int at) { return ids.data[at / ids.slots * ids.stride + at % ids.slots]; });
  }
#pragma unroll
  for (int& expert : experts) {
    if (expert < -1 || expert >= ids.experts) expert = kWrongExpert;
  }
}

// Adds one in shared memory. For atomicAdd the compiler computes the address again each time.
__device__ inline void add_one(std::uint32_t address) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(address) : "memory");
}

// Counts the pairs `pair`, `pair + kStep`, ... below `end` by expert. Returns whether an id is out of
// range.
template <int kStep>
__device__ inline bool count_pairs(const ExpertIds& ids, int pair, int end, int* counts) {
  const std::uint32_t to = shared_address(counts);
  bool wrong = false;
  for (; pair < end; pair += kAtOnce * kStep) {
    int experts[kAtOnce];
    read_ids<kStep>(ids, pair, end, experts);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (experts[i] >= 0) add_one(to + 4 * static_cast<std::uint32_t>(experts[i]));
      wrong |= experts[i] == kWrongExpert;
    }
  }
  return wrong;
}

// Calls use(expert, begin, count) for each expert, with the rows and items before it and its own; returns the totals.
// counts[num_counts][experts].
template <class Use>
__device__ RowsAndItems for_each_expert(const int* counts, int num_counts, int experts, int item_rows, Use use) {
  __shared__ RowsAndItems warp_sums[kPrepareWarps];
  RowsAndItems before{0, 0};
  for (int base = 0; base < experts; base += kPrepareThreads) {
    const int expert = base + static_cast<int>(threadIdx.x);
    RowsAndItems own{0, 0};
    if (expert < experts) {
#pragma unroll 4
      for (int i = 0; i < num_counts; ++i) own.rows += counts[i * experts + expert];
    }
    if (item_rows > 0) own.items = (own.rows + item_rows - 1) / item_rows;
    RowsAndItems total{};
    const RowsAndItems first = before + block_scan(own, warp_sums, total);
    before = before + total;
    if (expert < experts) use(expert, first, own);
  }
  return before;
}

// Writes the tables, by block 0.
__device__ inline void write_tables(const ExpertIds& ids, const ExpertLists& lists, int* counts) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < ids.experts; i += kPrepareThreads) counts[i] = 0;
  __syncthreads();
  if (count_pairs<kPrepareThreads>(ids, thread, ids.pairs, counts) && ids.fault != nullptr) {
    atomicOr(ids.fault, static_cast<std::int32_t>(kFaultExpertIds));
  }
  __syncthreads();
  const auto write = [&](int expert, RowsAndItems first, RowsAndItems own) {
    lists.offsets[expert] = first.rows;
    for (int i = 0; i < own.items; ++i) {
      const int done = i * lists.item_rows;
      lists.items[first.items + i] = {expert, first.rows + done, min(lists.item_rows, own.rows - done)};
    }
  };
  const RowsAndItems total =
      for_each_expert(counts, 1, ids.experts, lists.items != nullptr ? lists.item_rows : 0, write);
  if (thread == 0) {
    lists.offsets[ids.experts] = total.rows;
    if (lists.num_items != nullptr) *lists.num_items = total.items;
  }
  if (lists.tiles != nullptr)
    cut_tiles<kPrepareThreads>(lists.offsets, ids.experts, lists.tiles, lists.tile_count, counts);
}

// Writes the rows of the block's segment of the pairs. Each warp counts its own pairs, so that lists keep the order of
// pairs.
__device__ inline void write_rows(const ExpertIds& ids, const ExpertLists& lists, const PairSegments& segments,
                                  int block, int* counts) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  for (int i = thread; i < segments.counts() * ids.experts; i += kPrepareThreads) counts[i] = 0;
  __syncthreads();
  const int block_first = block * segments.block_pairs();
  const int block_end = min(ids.pairs, block_first + segments.block_pairs());
  const int first = block_first + warp * segments.pairs;
  const int end = warp < segments.warps ? min(block_end, first + segments.pairs) : 0;
  int* own = counts + (segments.first_warp() + warp) * ids.experts;
  count_pairs<kWarpSize>(ids, first + lane, end, own);
  if (segments.blocks > 1) {
    count_pairs<kPrepareThreads>(ids, thread, block_first, counts);
    count_pairs<kPrepareThreads>(ids, block_end + thread, ids.pairs, counts + (segments.counts() - 1) * ids.experts);
  }
  __syncthreads();
  // Replaces each count by the index at which its first pair is written.
  for_each_expert(counts, segments.counts(), ids.experts, 0, [&](int expert, RowsAndItems begin, RowsAndItems) {
    int next = begin.rows;
#pragma unroll 4
    for (int i = 0; i < segments.counts(); ++i) {
      int& count = counts[i * ids.experts + expert];
      const int counted = count;
      count = next;
      next += counted;
    }
  });
  __syncthreads();
  for (int step = first; step < end; step += kAtOnce * kWarpSize) {
    int experts[kAtOnce];
    read_ids<kWarpSize>(ids, step + lane, end, experts);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (step + i * kWarpSize >= end) break;
      const int expert = experts[i];
      const unsigned same = __match_any_sync(0xFFFFFFFFU, expert);
      const int rank = __popc(same & ((1U << lane) - 1));
      int index = 0;
      if (expert >= 0) index = own[expert] + rank;
      __syncwarp();
      if (expert >= 0) {
        lists.rows[index] = step + i * kWarpSize + lane;
        if (rank == 0) own[expert] = index + __popc(same);
      }
      __syncwarp();
    }
  }
}

}  // namespace thalweg::cu
