#pragma once

// A state S [V,K] in registers: a simdgroup holds eight rows, as the tiles of S^T [K,8].

#include "metal/kernels/tiles.h"

constant constexpr int kMaxKeyTiles = kMaxHeadSize / 8;

struct StateTiles {
  simdgroup_float8x8 tile[kMaxKeyTiles];
};

// Loads tile by tile through `exchange`, 64 floats private to the simdgroup. value: the first of its eight rows.
inline void load_state(thread StateTiles& state, device const void* data, constant StateView& view, int64_t slot,
                       int head, int value, threadgroup float* exchange, uint lane) {
  THALWEG_UNROLL
  for (int t = 0; t < kMaxKeyTiles; ++t) {
    if (t * 8 >= kHeadK) continue;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(lane); i < 64; i += 32) {
      const int v = value + i / 8;
      const int key = t * 8 + i % 8;
      exchange[i] = v < kHeadV ? load(data, kStateType, state_offset(view, slot, 0, head, v, key)) : 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(state.tile[t], exchange, 8, 0, true);
  }
}

inline void clear(thread StateTiles& state) {
  THALWEG_UNROLL
  for (int t = 0; t < kMaxKeyTiles; ++t) state.tile[t] = zero_tile();
}

inline void store_state(thread const StateTiles& state, device void* data, int type, constant StateView& view,
                        int64_t slot, int chunk, int head, int value, threadgroup float* exchange, uint lane) {
  THALWEG_UNROLL
  for (int t = 0; t < kMaxKeyTiles; ++t) {
    if (t * 8 >= kHeadK) continue;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(state.tile[t], exchange, 8, 0, true);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(lane); i < 64; i += 32) {
      const int v = value + i / 8;
      if (v < kHeadV) store(data, type, state_offset(view, slot, chunk, head, v, t * 8 + i % 8), exchange[i]);
    }
  }
}

// state = decay state + rows^T values, for the tiles of S^T in columns column .. column + kBlock of K; rows
// [64][kBlock].
inline void update_state(thread StateTiles& state, float decay, threadgroup const float* rows, int column,
                         thread const ColumnTiles& values) {
  const simdgroup_float8x8 diagonal = simdgroup_float8x8(decay);
  THALWEG_UNROLL
  for (int t = 0; t < kMaxKeyTiles; ++t) {
    if (t * 8 < column || t * 8 >= column + kBlock || t * 8 >= kHeadK) continue;
    simdgroup_float8x8 sum;
    simdgroup_multiply(sum, diagonal, state.tile[t]);
    THALWEG_UNROLL
    for (int j = 0; j < kMaxRowTiles; ++j) {
      if (j >= row_tiles()) continue;
      simdgroup_float8x8 left;
      simdgroup_load(left, rows + j * 8 * kBlock + (t * 8 - column), kBlock, 0, true);
      simdgroup_multiply_accumulate(sum, left, values.tile[j], sum);
    }
    state.tile[t] = sum;
  }
}

// products += rows S^T over the block's columns of K.
inline void multiply_state(thread ColumnTiles& products, threadgroup const float* rows, int column,
                           thread const StateTiles& state) {
  THALWEG_UNROLL
  for (int t = 0; t < kMaxKeyTiles; ++t) {
    if (t * 8 < column || t * 8 >= column + kBlock || t * 8 >= kHeadK) continue;
    multiply_rows(products, rows, t - column / 8, state.tile[t]);
  }
}
