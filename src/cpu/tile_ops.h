#pragma once

// Products on matrix units: the instructions of one, and what prepares their operands.
//
// A tile of operands is 16 rows of 32 bf16 values along K, 1 KiB. Weights are tiles as they stand: a row of the tile is
// a row of the weights. Activations are tiles of pairs: row j of the tile holds values 2 j and 2 j + 1 of 16 rows of
// activations. A product of the two adds to 16 x 16 f32 sums, one row per weight row. Sums run along K tile by tile, in
// order.

#include <cstdint>

#include "cpu/weight_matmul.h"
#include "thalweg/dtype.h"

namespace thalweg::cpu {

inline constexpr std::int64_t kTileSide = 16;   // rows of weights, rows of activations
inline constexpr std::int64_t kTileDepth = 32;  // values along K
inline constexpr std::int64_t kTileValues = kTileSide * kTileDepth;
inline constexpr std::int64_t kTileSums = kTileSide * kTileSide;
inline constexpr std::int64_t kBlockTiles = 4;  // weight tiles of a TileBlock, at most

// Up to kBlockTiles tiles of weight rows times any number of tiles of activation rows, `steps` tiles along K.
struct TileBlock {
  const std::uint16_t* weights;  // [weight_tiles][weight_stride]: of a row of tiles, the first `steps`
  std::int64_t weight_tiles;
  std::int64_t weight_stride;        // values
  const std::uint16_t* activations;  // [activation_tiles][activation_stride]
  std::int64_t activation_tiles;
  std::int64_t activation_stride;  // values
  std::int64_t steps;
  float* sums;      // [activation_tiles][kBlockTiles][kTileSums]
  bool accumulate;  // add to the sums
};

// c[i,j] = (or +=) sum_k a[i,k] b[j,k], for matrices that lie as the kernels around need them.
struct TileProduct {
  const std::uint16_t* a;  // bf16 [16 a_tiles, a_row], row by row
  std::int64_t a_tiles;
  std::int64_t a_row;      // values
  const std::uint16_t* b;  // [b_tiles][b_stride]: activation tiles
  std::int64_t b_tiles;
  std::int64_t b_stride;  // values
  std::int64_t steps;     // tiles along K
  float* c;               // [16 a_tiles, c_row]
  std::int64_t c_row;
  bool accumulate;
};

struct TileOps {
  // Rounds 16 rows (null: zeros) of K values, F32, F16 or BF16, to activation tiles: K / 32 of them, rounded up. What
  // bf16 cannot hold as a finite number is NaN.
  void (*pack)(DType dtype, const void* const* rows, std::int64_t k, std::uint16_t* tiles);
  // Weights k0 .. k0 + count of up to 16 rows as weight tiles, rounded once from the values of dequantize. k0 is a
  // multiple of 256. Absent rows are zeros; F16 and BF16 that are not finite are NaN. May prefetch as many bytes of as
  // many rows from `ahead` on, if not null.
  void (*decode)(const WeightRows& weights, std::int64_t k0, std::int64_t count, const void* ahead,
                 std::uint16_t* tiles);
  void (*multiply)(const TileBlock& block);
  // a_tiles and b_tiles are even.
  void (*multiply_rows)(const TileProduct& product);
  // n values, a multiple of 32, to bf16.
  void (*round)(const float* from, std::int64_t n, std::uint16_t* to);
  // Rows 2 j and 2 j + 1 of a matrix [K,N], rounded to bf16, as row j of the activation tiles of its transpose: value n
  // of both goes to tile n / 16, tile_stride values apart. N is a multiple of 16.
  void (*pair_rows)(const float* even, const float* odd, std::int64_t n, std::uint16_t* tiles,
                    std::int64_t tile_stride);
  // to[j][16 t + i] = from[t][i][j], of `tiles` tiles of 16 x 16 words of 32 bits: sums, or pairs of bf16; rows of `to`
  // have kBlockTiles * 16 words.
  void (*transpose)(const void* from, std::int64_t tiles, void* to);
};

// F32 weights are not rounded to bf16: tiles do not take them.
constexpr bool has_tiles(DType weight) { return weight != DType::kF32 && weight != DType::kI32; }

// The matrix units of this machine: AMX, if the selected instruction set is the one with AVX-512. Null if there are
// none.
const TileOps* tile_ops();

// The same functions without instructions of their own, for tests on any machine.
const TileOps& emulated_tile_ops();
// tile_ops() returns the emulation; for tests.
void emulate_tiles(bool on);

// Null where the machine has no AMX, or the compiler does not know it.
const TileOps* amx_tile_ops();

}  // namespace thalweg::cpu
