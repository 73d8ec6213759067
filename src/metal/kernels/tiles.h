#pragma once

// Matrices of a chunk: up to 64 rows of tokens, as 8 x 8 tiles. Four simdgroups share the work.

#include "metal/kernels/common.h"

// A lower triangular matrix [C,C] in threadgroup memory is kept as its tiles on and below the diagonal, row of tiles by
// row of tiles, each contiguous: 36 tiles for C = 64, 9 KB.
inline int lower_tile(int row, int column) { return 64 * (row * (row + 1) / 2 + column); }
// Element (i, j) of it, j / 8 <= i / 8.
inline int lower_element(int i, int j) { return lower_tile(i / 8, j / 8) + i % 8 * 8 + j % 8; }

constant constexpr int kMostRows = kMaxChunk / 8;  // tiles of a chunk
constant constexpr int kBlock = kBlockColumns;     // columns that are staged at a time: a tile for each simdgroup

inline int row_tiles() { return kChunk / 8; }

inline simdgroup_float8x8 zero_tile() { return make_filled_simdgroup_matrix<float, 8, 8>(0.0f); }

// The tiles of a lower triangular product that one simdgroup holds: number simdgroup, simdgroup + 4, ...
struct LowerTiles {
  simdgroup_float8x8 tile[kMostRows * (kMostRows + 1) / 2 / kSimdgroups];
};
constant constexpr int kMostLowerTiles = kMostRows * (kMostRows + 1) / 2 / int(kSimdgroups);

struct TilePlace {
  int row;
  int column;
  bool exists;
};

// Of the tile with this number, row by row.
inline TilePlace tile_place(int number) {
  TilePlace place;
  place.row = 0;
  place.column = number;
  THALWEG_UNROLL
  for (int i = 0; i < kMostRows; ++i) {
    if (place.row != i || place.column <= i) continue;
    place.column -= i + 1;
    ++place.row;
  }
  place.exists = place.row < row_tiles();
  return place;
}

inline TilePlace lower_place(int n, uint simdgroup) { return tile_place(n * int(kSimdgroups) + int(simdgroup)); }

// products += a b^T on and below the diagonal; a, b [64][kBlock].
inline void multiply_lower(thread LowerTiles& products, threadgroup const float* a, threadgroup const float* b,
                           uint simdgroup) {
  THALWEG_UNROLL
  for (int n = 0; n < kMostLowerTiles; ++n) {
    const TilePlace place = lower_place(n, simdgroup);
    if (!place.exists) continue;
    for (int k = 0; k < kBlock / 8; ++k) {
      simdgroup_float8x8 left;
      simdgroup_float8x8 right;
      simdgroup_load(left, a + place.row * 8 * kBlock + k * 8, kBlock);
      simdgroup_load(right, b + place.column * 8 * kBlock + k * 8, kBlock, 0, true);
      simdgroup_multiply_accumulate(products.tile[n], left, right, products.tile[n]);
    }
  }
}

inline void clear(thread LowerTiles& products) {
  THALWEG_UNROLL
  for (int n = 0; n < kMostLowerTiles; ++n) products.tile[n] = zero_tile();
}

inline void store_lower(thread const LowerTiles& products, threadgroup float* lower, uint simdgroup) {
  THALWEG_UNROLL
  for (int n = 0; n < kMostLowerTiles; ++n) {
    const TilePlace place = lower_place(n, simdgroup);
    if (place.exists) simdgroup_store(products.tile[n], lower + lower_tile(place.row, place.column));
  }
}

// One column of tiles of a product [C,kBlock], the simdgroup's own.
struct ColumnTiles {
  simdgroup_float8x8 tile[kMostRows];
};

inline void clear(thread ColumnTiles& products) {
  THALWEG_UNROLL
  for (int i = 0; i < kMostRows; ++i) products.tile[i] = zero_tile();
}

// products += lower b; b [64][kBlock].
inline void multiply_by_lower(thread ColumnTiles& products, threadgroup const float* lower, threadgroup const float* b,
                              uint simdgroup) {
  THALWEG_UNROLL
  for (int j = 0; j < kMostRows; ++j) {
    if (j >= row_tiles()) continue;
    simdgroup_float8x8 right;
    simdgroup_load(right, b + j * 8 * kBlock + simdgroup * 8, kBlock);
    THALWEG_UNROLL
    for (int i = 0; i < kMostRows; ++i) {
      if (i < j || i >= row_tiles()) continue;
      simdgroup_float8x8 left;
      simdgroup_load(left, lower + lower_tile(i, j));
      simdgroup_multiply_accumulate(products.tile[i], left, right, products.tile[i]);
    }
  }
}

// products += rows right for the tile `k` of the columns of rows [64][kBlock].
inline void multiply_rows(thread ColumnTiles& products, threadgroup const float* rows, int k,
                          thread const simdgroup_float8x8& right) {
  THALWEG_UNROLL
  for (int i = 0; i < kMostRows; ++i) {
    if (i >= row_tiles()) continue;
    simdgroup_float8x8 left;
    simdgroup_load(left, rows + i * 8 * kBlock + k * 8, kBlock);
    simdgroup_multiply_accumulate(products.tile[i], left, right, products.tile[i]);
  }
}

// Into the simdgroup's column of block [64][kBlock]. Its lanes must have read what they needed of that column.
inline void store_column(thread const ColumnTiles& products, threadgroup float* block, uint simdgroup) {
  simdgroup_barrier(mem_flags::mem_threadgroup);
  THALWEG_UNROLL
  for (int i = 0; i < kMostRows; ++i) {
    if (i < row_tiles()) simdgroup_store(products.tile[i], block + i * 8 * kBlock + simdgroup * 8, kBlock);
  }
}

// block [64][kBlock] = columns column .. column + kBlock of a head's rows of the chunk, zero beyond its length and
// width.
inline void stage(threadgroup float* block, device const void* data, constant View& view, Chunk chunk, int head,
                  int column, int width, uint thread_index) {
  for (int i = int(thread_index); i < kChunk * kBlock; i += int(kThreads)) {
    const int row = i / kBlock;
    const int place = column + i % kBlock;
    const bool inside = row < chunk.length && place < width;
    block[i] = inside ? load(data, kType, at(view, chunk.row, chunk.begin + row, head) + place) : 0.0f;
  }
}

// The same of a vector [B,T,HV] f32.
inline void stage_vector(threadgroup float* vector, device const float* data, constant View& view, Chunk chunk,
                         int head, uint thread_index) {
  for (int i = int(thread_index); i < kChunk; i += int(kThreads)) {
    vector[i] = i < chunk.length ? data[at(view, chunk.row, chunk.begin + i, head)] : 0.0f;
  }
}
