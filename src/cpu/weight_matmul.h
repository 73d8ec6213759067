#pragma once

// Products of weight rows in any format with rows of activations: the inner loops of linear, the expert matmuls and
// moe_ffn, one set per instruction set.
//
// A tile of `tile_rows` weight rows is worked on at a time, one row per vector lane, in pieces of 256 weights along K.
// A piece is decoded once, straight from the packed blocks, for all activation rows. Codes of every block format come
// out alike: unsigned bytes, a scale per group of 16 or 32 and a minimum, weight = scale code - minimum, so that one
// loop serves them all. A result is summed over K in an order of its own, whatever the number of activation rows and
// whoever computes it.

#include <cstdint>

#include "thalweg/dtype.h"

namespace thalweg::cpu {

// At most tile_rows consecutive rows of one weight matrix.
struct WeightRows {
  DType dtype = DType::kF32;
  const void* data = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  // For prefetching: what will be read after these rows, as much of it and without gaps; null if that is not known.
  const void* next = nullptr;
  bool prefetched = false;  // these rows have been a `next`
};

inline constexpr std::int64_t kMaxTileRows = 16;

struct MatmulOps {
  std::int64_t tile_rows;
  std::int64_t scratch_floats;  // of either product

  // sums[i * tile_rows + r] = weight row r . activations[i], for i < m. `activations[i]` is an f32 row of K.
  void (*exact)(const WeightRows& weights, const float* const* activations, std::int64_t m, float* sums,
                float* scratch);
  // The same with rows made by `quantize`; block formats only.
  void (*q8)(const WeightRows& weights, const float* const* activations, std::int64_t m, float* sums, float* scratch);
  // Rounds K values (F32, F16 or BF16), a multiple of 32, to 8 bits per 32 with an f32 scale: q8_row_floats(K) floats.
  // A value that is not finite makes its whole group NaN.
  void (*quantize)(DType dtype, const void* x, std::int64_t k, float* row);
};

// A quantised row: codes, then per 32 a scale, then scale times the sums of the codes per 16 and per 32.
constexpr std::int64_t q8_row_floats(std::int64_t k) { return k / 4 + k / 32 + k / 16 + k / 32; }

// Those of the selected instruction set.
const MatmulOps& matmul_ops();

}  // namespace thalweg::cpu
