#pragma once

// (I - N)^-1 of a strictly lower triangular N [C,C].

#include "metal/kernels/tiles.h"

// Recursive: blocks on the diagonal double in size from 8 to 64. Tiles on the diagonal are inverted by substitution,
// one thread per column: at most 28 dependent multiply-adds. The inverses X1 and X2 of two adjacent blocks then give
// the block below X1 as X2 N21 X1: two products, whose sums are 1, 2 and 4 tiles long. The longest dependent chain is
// 28 scalar and 2 (1 + 2 + 4) matrix multiply-adds.
//
// lower: N on entry, the inverse on return; the diagonal tiles include the zeros above the diagonal.
// temporary: 16 tiles.
inline void invert(threadgroup float* lower, threadgroup float* temporary, uint thread_index, uint simdgroup) {
  const int tile = lower_tile(int(thread_index) / 8, int(thread_index) / 8);
  const int column = int(thread_index) % 8;
  const bool mine = int(thread_index) < kChunk;
  float x[8];
  if (mine) {
    for (int i = 0; i < 8; ++i) {
      x[i] = i == column ? 1.0f : 0.0f;
      for (int j = 0; j < i; ++j) x[i] += lower[tile + i * 8 + j] * x[j];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (mine) {
    for (int i = 0; i < 8; ++i) lower[tile + i * 8 + column] = x[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int size = 1; size < kMaxRowTiles; size *= 2) {
    if (size >= row_tiles()) continue;
    const int tiles = row_tiles() / 2 * size;  // of all blocks below the diagonal
    for (int t = int(simdgroup); t < tiles; t += int(kSimdgroups)) {
      const int first = t / (size * size) * 2 * size;
      const int row = first + size + t / size % size;
      const int column_tile = first + t % size;
      simdgroup_float8x8 sum = zero_tile();
      for (int m = 0; m < size; ++m) {
        if (m < t % size) continue;  // above the diagonal
        simdgroup_float8x8 left;
        simdgroup_float8x8 right;
        simdgroup_load(left, lower + lower_tile(row, first + m));
        simdgroup_load(right, lower + lower_tile(first + m, column_tile));
        simdgroup_multiply_accumulate(sum, left, right, sum);
      }
      simdgroup_store(sum, temporary + 64 * t);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int t = int(simdgroup); t < tiles; t += int(kSimdgroups)) {
      const int block = t / (size * size);
      const int first = block * 2 * size + size;
      const int row = first + t / size % size;
      simdgroup_float8x8 sum = zero_tile();
      for (int m = 0; m < size; ++m) {
        if (m > row - first) continue;  // above the diagonal
        simdgroup_float8x8 left;
        simdgroup_float8x8 right;
        simdgroup_load(left, lower + lower_tile(row, first + m));
        simdgroup_load(right, temporary + 64 * (block * size * size + m * size + t % size));
        simdgroup_multiply_accumulate(sum, left, right, sum);
      }
      simdgroup_store(sum, lower + lower_tile(row, block * 2 * size + t % size));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
