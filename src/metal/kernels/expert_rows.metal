// The rows of each expert, in ascending order, and the tiles that mul_mm_id makes of them. One threadgroup: a thread
// counts, then writes, the pairs of one expert in its part of a block of ids, which it reads from the chip's own
// memory. No order depends on timing. Ids that name no expert are left out.

#include "metal/kernels/common.h"

[[max_total_threads_per_threadgroup(1024)]] kernel void expert_rows(constant ExpertRowsParameters& p [[buffer(0)]],
                                                                    device const int* ids [[buffer(1)]],  // [T,S]
                                                                    device int* offsets [[buffer(2)]],    // [E+1]
                                                                    device int* rows [[buffer(3)]],       // [T*S]
                                                                    device RowTile* tiles
                                                                    [[buffer(4)]],  // as many as there are
                                                                    device uint* grid [[buffer(5)]],  // [3]
                                                                    threadgroup int* scratch [[threadgroup(0)]],
                                                                    uint thread_index [[thread_index_in_threadgroup]],
                                                                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup ushort* cached = (threadgroup ushort*)scratch;    // [kCachedIds]
  threadgroup int* starts = scratch + kCachedIds / 2;           // [E+1] where the expert's next row goes
  threadgroup int* counts = starts + p.experts + 1;             // [parts,E] of the block at hand
  threadgroup int* first_tiles = counts + p.parts * p.experts;  // [E+1]
  const int workers = p.parts * p.experts;
  const bool one_block = p.pairs <= kCachedIds;

  for (int e = int(thread_index); e < p.experts; e += kRowsThreads) starts[e] = 0;
  for (int placing = 0; placing < 2; ++placing) {
    for (int begin = 0; begin < p.pairs; begin += kCachedIds) {
      const int size = min(int(kCachedIds), p.pairs - begin);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (placing == 0 || !one_block) {
        for (int i = int(thread_index); i < size; i += kRowsThreads) {
          const int pair = begin + i;
          const int id = ids[pair / p.slots * p.ids_token + pair % p.slots];
          cached[i] = ushort(id >= 0 && id < p.experts ? id : 0xFFFF);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      const int part_size = (size + p.parts - 1) / p.parts;
      for (int worker = int(thread_index); worker < workers; worker += kRowsThreads) {
        const int e = worker % p.experts;
        const int from = worker / p.experts * part_size;
        int count = 0;
        for (int i = from; i < min(from + part_size, size); ++i) count += cached[i] == e ? 1 : 0;
        counts[worker] = count;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int e = int(thread_index); e < p.experts; e += kRowsThreads) {
        int place = starts[e];
        for (int part = 0; part < p.parts; ++part) {
          const int count = counts[part * p.experts + e];
          counts[part * p.experts + e] = place;  // where the part's rows go
          place += count;
        }
        starts[e] = place;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (placing == 0) continue;
      for (int worker = int(thread_index); worker < workers; worker += kRowsThreads) {
        const int e = worker % p.experts;
        const int from = worker / p.experts * part_size;
        int place = counts[worker];
        for (int i = from; i < min(from + part_size, size); ++i) {
          if (cached[i] == e) rows[place++] = begin + i;
        }
      }
    }
    if (placing == 1) continue;
    // Counts become starts. (Without ids there has been no barrier yet.)
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
