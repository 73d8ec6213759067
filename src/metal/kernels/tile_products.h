#pragma once

// Tiles of a product of many rows: up to 32 rows of activations and 64 of weights, staged as f32 for 32 inputs at a
// time, so that neither can overflow. A simdgroup has 16 of the columns.

#include "metal/kernels/formats.h"
#include "metal/kernels/gates.h"

constant constexpr int kWeightFloats = kColumnsOfTile * kDepthOfTile;
constant constexpr int kInputFloats = kRowsOfTile * kDepthOfTile;

struct TileSums {
  simdgroup_float8x8 tile[4][2];
};

inline void clear(thread TileSums& sums) {
  THALWEG_UNROLL
  for (int i = 0; i < 4; ++i) {
    THALWEG_UNROLL
    for (int j = 0; j < 2; ++j) sums.tile[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
}

// weights [64][32] = rows first_column.. of a matrix [n,k], inputs depth..; zeros beyond its edges.
inline void stage_weights(threadgroup float* weights, device const uchar* matrix, int64_t row_bytes, int first_column,
                          int n, int depth, int k, uint thread_index) {
  for (int item = int(thread_index); item < kWeightFloats / 16; item += int(kThreads)) {
    const int column = item / (kDepthOfTile / 16);
    const int first = item % (kDepthOfTile / 16) * 2;  // of two octets
    device const uchar* row = matrix + (first_column + column) * row_bytes;
    const bool inside = first_column + column < n && depth + first * 8 < k;
    CodeScale scale;
    if (inside) scale = scale_of(row, depth / 8 + first);
    for (int octet = first; octet < first + 2; ++octet) {
      Weights8 eight;
      if (inside && depth + octet * 8 < k) {
        eight = unpack(row, depth / 8 + octet, k, scale);
      } else {
        for (int i = 0; i < 8; ++i) eight.w[i] = 0.0f;
      }
      for (int i = 0; i < 8; ++i) weights[column * kDepthOfTile + octet * 8 + i] = eight.w[i];
    }
  }
}

// sums += inputs weights^T; inputs [32][32].
inline void multiply(thread TileSums& sums, threadgroup const float* inputs, threadgroup const float* weights,
                     uint simdgroup) {
  for (int k = 0; k < kDepthOfTile / 8; ++k) {
    simdgroup_float8x8 right[2];
    THALWEG_UNROLL
    for (int j = 0; j < 2; ++j) {
      simdgroup_load(right[j], weights + (int(simdgroup) * 16 + j * 8) * kDepthOfTile + k * 8, kDepthOfTile, 0, true);
    }
    THALWEG_UNROLL
    for (int i = 0; i < 4; ++i) {
      simdgroup_float8x8 left;
      simdgroup_load(left, inputs + i * 8 * kDepthOfTile + k * 8, kDepthOfTile);
      THALWEG_UNROLL
      for (int j = 0; j < 2; ++j) simdgroup_multiply_accumulate(sums.tile[i][j], left, right[j], sums.tile[i][j]);
    }
  }
}

// outputs [32][64]
inline void store_tiles(thread const TileSums& sums, threadgroup float* outputs, uint simdgroup) {
  THALWEG_UNROLL
  for (int i = 0; i < 4; ++i) {
    THALWEG_UNROLL
    for (int j = 0; j < 2; ++j) {
      simdgroup_store(sums.tile[i][j], outputs + i * 8 * kColumnsOfTile + int(simdgroup) * 16 + j * 8, kColumnsOfTile);
    }
  }
}

// Element i of the tile's result; of two matrices, silu(gate) * up, the second of which lies behind the first.
inline float tile_output(threadgroup const float* outputs, int i) {
  return kGated ? silu(outputs[i]) * outputs[kRowsOfTile * kColumnsOfTile + i] : outputs[i];
}
