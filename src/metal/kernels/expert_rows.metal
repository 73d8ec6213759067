// Lists the rows of each expert in ascending order, and mul_mm_id's tiles. One threadgroup, two passes over blocks of
// ids in threadgroup memory: a thread counts, then writes, the pairs of one expert in its share of the block. The order
// does not depend on timing. Invalid ids are skipped.

#include "metal/kernels/common.h"

// A block of ids in threadgroup memory.
struct IdBlock {
  threadgroup ushort* ids;  // [size]; 0xFFFF: invalid
  int size;
  int share;  // ids of a thread
};

// The threads of an expert's shares: item = share * E + expert.
struct ShareItem {
  int expert;
  int begin;
  int end;
};
inline ShareItem share_item(constant ExpertRowsParameters& p, IdBlock block, int item) {
  ShareItem result;
  result.expert = item % p.experts;
  result.begin = item / p.experts * block.share;
  result.end = min(result.begin + block.share, block.size);
  return result;
}

inline void load_ids(IdBlock block, device const int* ids, constant ExpertRowsParameters& p, int begin,
                     uint thread_index) {
  for (int i = int(thread_index); i < block.size; i += kRowsThreads) {
    const int pair = begin + i;
    const int id = ids[pair / p.slots * p.ids_token + pair % p.slots];
    block.ids[i] = ushort(id >= 0 && id < p.experts ? id : 0xFFFF);
  }
}

inline void count_rows(threadgroup int* counts, IdBlock block, constant ExpertRowsParameters& p, uint thread_index) {
  for (int item = int(thread_index); item < p.threads_per_expert * p.experts; item += kRowsThreads) {
    const ShareItem share = share_item(p, block, item);
    int count = 0;
    for (int i = share.begin; i < share.end; ++i) count += block.ids[i] == share.expert ? 1 : 0;
    counts[item] = count;
  }
}

// Replaces the counts of the shares by the offsets of their first rows; starts go on to the next block's.
inline void offset_shares(threadgroup int* counts, threadgroup int* starts, constant ExpertRowsParameters& p,
                          uint thread_index) {
  for (int e = int(thread_index); e < p.experts; e += kRowsThreads) {
    int next = starts[e];
    for (int share = 0; share < p.threads_per_expert; ++share) {
      const int count = counts[share * p.experts + e];
      counts[share * p.experts + e] = next;
      next += count;
    }
    starts[e] = next;
  }
}

inline void write_rows(device int* rows, threadgroup const int* offsets, IdBlock block,
                       constant ExpertRowsParameters& p, int begin, uint thread_index) {
  for (int item = int(thread_index); item < p.threads_per_expert * p.experts; item += kRowsThreads) {
    const ShareItem share = share_item(p, block, item);
    int next = offsets[item];
    for (int i = share.begin; i < share.end; ++i) {
      if (block.ids[i] == share.expert) rows[next++] = begin + i;
    }
  }
}

// Turns the experts' counts into the offsets of their first rows, and lists their tiles. Called by a simdgroup.
inline void list_experts(threadgroup int* starts, constant ExpertRowsParameters& p, device int* offsets,
                         device RowTile* tiles, device uint* grid, uint lane) {
  int before = 0;
  int tiles_before = 0;
  for (int e = int(lane); e - int(lane) < p.experts; e += 32) {
    const int count = e < p.experts ? starts[e] : 0;
    const int tile_count = (count + kRowsOfTile - 1) / kRowsOfTile;
    const int start = before + simd_prefix_exclusive_sum(count);
    const int first_tile = tiles_before + simd_prefix_exclusive_sum(tile_count);
    before += simd_sum(count);
    tiles_before += simd_sum(tile_count);
    if (e >= p.experts) continue;
    starts[e] = start;
    offsets[e] = start;
    if (!kListsTiles) continue;
    for (int t = 0; t < tile_count; ++t) {
      device RowTile& tile = tiles[first_tile + t];
      tile.expert = e;
      tile.first = start + t * kRowsOfTile;
      tile.count = min(int(kRowsOfTile), count - t * kRowsOfTile);
    }
  }
  if (lane != 0) return;
  offsets[p.experts] = before;
  if (!kListsTiles) return;
  grid[0] = uint(p.column_blocks);
  grid[1] = uint(tiles_before);
  grid[2] = 1;
}

[[max_total_threads_per_threadgroup(1024)]] kernel void expert_rows(constant ExpertRowsParameters& p [[buffer(0)]],
                                                                    device const int* ids [[buffer(1)]],  // [T,S]
                                                                    device int* offsets [[buffer(2)]],    // [E+1]
                                                                    device int* rows [[buffer(3)]],       // [T*S]
                                                                    device RowTile* tiles
                                                                    [[buffer(4)]],                    // one per tile
                                                                    device uint* grid [[buffer(5)]],  // [3]
                                                                    threadgroup int* scratch [[threadgroup(0)]],
                                                                    uint thread_index [[thread_index_in_threadgroup]],
                                                                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                    uint lane [[thread_index_in_simdgroup]]) {
  IdBlock block;
  block.ids = (threadgroup ushort*)scratch;            // [kCachedIds]
  threadgroup int* starts = scratch + kCachedIds / 2;  // [E+1] offset of the expert's next row
  threadgroup int* counts = starts + p.experts + 1;    // [threads_per_expert,E] of the current block
  const bool one_block = p.pairs <= kCachedIds;

  for (int e = int(thread_index); e < p.experts; e += kRowsThreads) starts[e] = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int begin = 0; begin < p.pairs; begin += kCachedIds) {
      block.size = min(int(kCachedIds), p.pairs - begin);
      block.share = (block.size + p.threads_per_expert - 1) / p.threads_per_expert;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (pass == 0 || !one_block) {
        load_ids(block, ids, p, begin, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      count_rows(counts, block, p, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      offset_shares(counts, starts, p, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (pass == 1) write_rows(rows, counts, block, p, begin, thread_index);
    }
    if (pass == 1) continue;
    // Counts become starts. (This barrier is the first one if there are no ids.)
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) list_experts(starts, p, offsets, tiles, grid, lane);
  }
}
