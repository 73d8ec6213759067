// Lists the rows of each expert in ascending order, and mul_mm_id's tiles. One threadgroup, two passes over blocks of
// ids in threadgroup memory: a thread counts, then writes, the pairs of one expert in its share of the block. The order
// does not depend on timing. Invalid ids are skipped.

#include "metal/kernels/common.h"

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
  threadgroup ushort* cached = (threadgroup ushort*)scratch;  // [kCachedIds]
  threadgroup int* starts = scratch + kCachedIds / 2;         // [E+1] offset of the expert's next row
  threadgroup int* counts = starts + p.experts + 1;           // [threads_per_expert,E] of the current block
  threadgroup int* first_tiles = counts + p.threads_per_expert * p.experts;  // [E+1]
  const int items = p.threads_per_expert * p.experts;
  const bool one_block = p.pairs <= kCachedIds;

  for (int e = int(thread_index); e < p.experts; e += kRowsThreads) starts[e] = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int begin = 0; begin < p.pairs; begin += kCachedIds) {
      const int size = min(int(kCachedIds), p.pairs - begin);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (pass == 0 || !one_block) {
        for (int i = int(thread_index); i < size; i += kRowsThreads) {
          const int pair = begin + i;
          const int id = ids[pair / p.slots * p.ids_token + pair % p.slots];
          cached[i] = ushort(id >= 0 && id < p.experts ? id : 0xFFFF);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      const int share = (size + p.threads_per_expert - 1) / p.threads_per_expert;
      for (int item = int(thread_index); item < items; item += kRowsThreads) {
        const int e = item % p.experts;
        const int from = item / p.experts * share;
        int count = 0;
        for (int i = from; i < min(from + share, size); ++i) count += cached[i] == e ? 1 : 0;
        counts[item] = count;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int e = int(thread_index); e < p.experts; e += kRowsThreads) {
        int next = starts[e];
        for (int share_index = 0; share_index < p.threads_per_expert; ++share_index) {
          const int count = counts[share_index * p.experts + e];
          counts[share_index * p.experts + e] = next;  // offset of the share's first row
          next += count;
        }
        starts[e] = next;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (pass == 0) continue;
      for (int item = int(thread_index); item < items; item += kRowsThreads) {
        const int e = item % p.experts;
        const int from = item / p.experts * share;
        int next = counts[item];
        for (int i = from; i < min(from + share, size); ++i) {
          if (cached[i] == e) rows[next++] = begin + i;
        }
      }
    }
    if (pass == 1) continue;
    // Counts become starts. (This barrier is the first one if there are no ids.)
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
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
        first_tiles[e] = first_tile;
        offsets[e] = start;
        if (!kListsTiles) continue;
        for (int t = 0; t < tile_count; ++t) {
          device RowTile& tile = tiles[first_tile + t];
          tile.expert = e;
          tile.first = start + t * kRowsOfTile;
          tile.count = min(int(kRowsOfTile), count - t * kRowsOfTile);
        }
      }
      if (lane == 0) {
        offsets[p.experts] = before;
        if (kListsTiles) {
          grid[0] = uint(p.column_blocks);
          grid[1] = uint(tiles_before);
          grid[2] = 1;
        }
      }
    }
  }
}
