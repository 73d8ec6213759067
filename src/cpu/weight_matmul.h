#pragma once

// Products of weight rows in any format with rows of activations: the inner loops of linear, the expert matmuls and
// moe_ffn, one set per instruction set.
//
// A product works on a tile of `tile_rows` weight rows, one row per vector lane, and on segments of 256 weights along
// K. A segment is decoded once, directly from the packed blocks, for all activation rows. Every block format decodes to
// unsigned codes, a scale and a minimum per group of 16 or 32, weight = scale code - minimum, so that one loop
// multiplies them all. The order of additions over K does not depend on the number of activation rows or threads.

#include <cstdint>

#include "thalweg/dtype.h"

namespace thalweg::cpu {

// Rows of one weight matrix, at equal distances.
struct WeightRows {
  DType dtype = DType::kF32;
  const void* data = nullptr;
  std::int64_t row_bytes = 0;  // from one of them to the next
  std::int64_t rows = 0;
  std::int64_t k = 0;
  // For prefetching: the adjacent rows that are multiplied next, as many as these; null: nothing is prefetched for
  // them.
  const void* next = nullptr;
  bool prefetched = false;  // these rows were `next` of the call before, or the processor prefetches them by itself
};

inline constexpr std::int64_t kMaxTileRows = 16;
inline constexpr std::int64_t kMaxQ8Rows = 32;

struct MatmulOps {
  std::int64_t tile_rows;
  std::int64_t q8_rows;         // whole tiles
  std::int64_t scratch_floats;  // for either product

  // sums[i * tile_rows + r] = weight row r . activations[i], for i < m. `activations[i]` is an f32 row of K. At most
  // tile_rows rows of weights.
  void (*exact)(const WeightRows& weights, const float* const* activations, std::int64_t m, float* sums,
                float* scratch);
  // The same with rows made by `quantize`; block formats only. With several rows of activations at most q8_rows rows of
  // weights, which if they are more than tile_rows are q8_rows apart in `sums`.
  void (*q8)(const WeightRows& weights, const float* const* activations, std::int64_t m, float* sums, float* scratch);
  // Rounds K values (F32, F16 or BF16), a multiple of 32, to 8 bits per 32 with an f32 scale: q8_row_floats(K) floats.
  // A value that is not finite makes its whole group NaN.
  void (*quantize)(DType dtype, const void* x, std::int64_t k, float* row);
};

// A quantized row: codes, then per 32 a scale, then scale times the sums of the codes per 16 and per 32, then these
// sums per 16 as 16-bit integers.
constexpr std::int64_t q8_row_floats(std::int64_t k) { return k / 4 + k / 32 + k / 16 + k / 32 + k / 32; }

// The functions of the selected instruction set.
const MatmulOps& matmul_ops();

}  // namespace thalweg::cpu
