#pragma once

// Matrices of a chunk, up to 64 tokens, as tiles of 8 x 8 that four simdgroups share.

#include "metal/kernels/common.h"

// A lower triangular matrix [C,C] in threadgroup memory holds only its tiles on and below the diagonal, each
// contiguous, in row-major order of tiles: 36 tiles for C = 64, 9 KB.
inline int lower_tile(int row, int column) { return 64 * (row * (row + 1) / 2 + column); }
// Offset of its element (i, j), j / 8 <= i / 8.
inline int lower_element(int i, int j) { return lower_tile(i / 8, j / 8) + i % 8 * 8 + j % 8; }

constant constexpr int kMaxRowTiles = kMaxChunk / 8;  // tiles of a chunk
constant constexpr int kBlock = kBlockColumns;        // columns staged at a time: one tile per simdgroup

inline int row_tiles() { return kChunk / 8; }

inline simdgroup_float8x8 zero_tile() { return make_filled_simdgroup_matrix<float, 8, 8>(0.0f); }

// One simdgroup's tiles of a lower triangular product: numbers simdgroup, simdgroup + 4, ...
struct LowerTiles {
  simdgroup_float8x8 tile[kMaxRowTiles * (kMaxRowTiles + 1) / 2 / kSimdgroups];
};
constant constexpr int kMaxLowerTiles = kMaxRowTiles * (kMaxRowTiles + 1) / 2 / int(kSimdgroups);

struct TileIndex {
  int row;
  int column;
  bool exists;
};

// Row and column of a tile by its number in row-major order.
inline TileIndex tile_index(int number) {
  TileIndex tile;
  tile.row = 0;
  tile.column = number;
  THALWEG_UNROLL
  for (int i = 0; i < kMaxRowTiles; ++i) {
    if (tile.row != i || tile.column <= i) continue;
    tile.column -= i + 1;
    ++tile.row;
  }
  tile.exists = tile.row < row_tiles();
  return tile;
}

inline TileIndex lower_tile_index(int n, uint simdgroup) { return tile_index(n * int(kSimdgroups) + int(simdgroup)); }

// products += a b^T on and below the diagonal; a, b [64][kBlock].
inline void multiply_lower(thread LowerTiles& products, threadgroup const float* a, threadgroup const float* b,
                           uint simdgroup) {
  THALWEG_UNROLL
  for (int n = 0; n < kMaxLowerTiles; ++n) {
    const TileIndex tile = lower_tile_index(n, simdgroup);
    if (!tile.exists) continue;
    for (int k = 0; k < kBlock / 8; ++k) {
      simdgroup_float8x8 left;
      simdgroup_float8x8 right;
      simdgroup_load(left, a + tile.row * 8 * kBlock + k * 8, kBlock);
      simdgroup_load(right, b + tile.column * 8 * kBlock + k * 8, kBlock, 0, true);
      simdgroup_multiply_accumulate(products.tile[n], left, right, products.tile[n]);
    }
  }
}

inline void clear(thread LowerTiles& products) {
  THALWEG_UNROLL
  for (int n = 0; n < kMaxLowerTiles; ++n) products.tile[n] = zero_tile();
}

inline void store_lower(thread const LowerTiles& products, threadgroup float* lower, uint simdgroup) {
  THALWEG_UNROLL
  for (int n = 0; n < kMaxLowerTiles; ++n) {
    const TileIndex tile = lower_tile_index(n, simdgroup);
    if (tile.exists) simdgroup_store(products.tile[n], lower + lower_tile(tile.row, tile.column));
  }
}

// One simdgroup's column of tiles of a product [C,kBlock].
struct ColumnTiles {
  simdgroup_float8x8 tile[kMaxRowTiles];
};

inline void clear(thread ColumnTiles& products) {
  THALWEG_UNROLL
  for (int i = 0; i < kMaxRowTiles; ++i) products.tile[i] = zero_tile();
}

// products += lower b; b [64][kBlock].
inline void multiply_by_lower(thread ColumnTiles& products, threadgroup const float* lower, threadgroup const float* b,
                              uint simdgroup) {
  THALWEG_UNROLL
  for (int j = 0; j < kMaxRowTiles; ++j) {
    if (j >= row_tiles()) continue;
    simdgroup_float8x8 right;
    simdgroup_load(right, b + j * 8 * kBlock + simdgroup * 8, kBlock);
    THALWEG_UNROLL
    for (int i = 0; i < kMaxRowTiles; ++i) {
      if (i < j || i >= row_tiles()) continue;
      simdgroup_float8x8 left;
      simdgroup_load(left, lower + lower_tile(i, j));
      simdgroup_multiply_accumulate(products.tile[i], left, right, products.tile[i]);
    }
  }
}

// products += rows right, for column of tiles `k` of rows [64][kBlock].
inline void multiply_rows(thread ColumnTiles& products, threadgroup const float* rows, int k,
                          thread const simdgroup_float8x8& right) {
  THALWEG_UNROLL
  for (int i = 0; i < kMaxRowTiles; ++i) {
    if (i >= row_tiles()) continue;
    simdgroup_float8x8 left;
    simdgroup_load(left, rows + i * 8 * kBlock + k * 8, kBlock);
    simdgroup_multiply_accumulate(products.tile[i], left, right, products.tile[i]);
  }
}

// Stores into the simdgroup's column of block [64][kBlock], which its lanes must have finished reading.
inline void store_column(thread const ColumnTiles& products, threadgroup float* block, uint simdgroup) {
  simdgroup_barrier(mem_flags::mem_threadgroup);
  THALWEG_UNROLL
  for (int i = 0; i < kMaxRowTiles; ++i) {
    if (i < row_tiles()) simdgroup_store(products.tile[i], block + i * 8 * kBlock + simdgroup * 8, kBlock);
  }
}

// block [64][kBlock] = columns column .. column + kBlock of a head's rows of the chunk, zeros beyond its length and
// width.
inline void stage(threadgroup float* block, device const void* data, constant View& view, Chunk chunk, int head,
                  int column, int width, uint thread_index) {
  for (int i = int(thread_index); i < kChunk * kBlock; i += int(kThreads)) {
    const int row = i / kBlock;
    const int index = column + i % kBlock;
    const bool inside = row < chunk.length && index < width;
    block[i] = inside ? load(data, kType, at(view, chunk.row, chunk.begin + row, head) + index) : 0.0f;
  }
}

// The same of a vector [B,T,HV] f32.
inline void stage_vector(threadgroup float* vector, device const float* data, constant View& view, Chunk chunk,
                         int head, uint thread_index) {
  for (int i = int(thread_index); i < kChunk; i += int(kThreads)) {
    vector[i] = i < chunk.length ? data[at(view, chunk.row, chunk.begin + i, head)] : 0.0f;
  }
}
