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
  // to[j][16 t + i] = from[t][i][j], of `tiles` tiles of 16 x 16 words of 32 bits: sums, or pairs of bf16; rows of `to`
  // have kBlockTiles * 16 words.
  void (*transpose)(const void* from, std::int64_t tiles, void* to);
};

// F32 weights are not rounded to bf16: tiles do not take them.
constexpr bool has_tiles(DType weight) { return weight != DType::kF32 && weight != DType::kI32; }

// The matrix units of this machine for weights in blocks: AMX, if the selected instruction set is the one with AVX-512.
// Null if there are none.
const TileOps* tile_ops();

// The same functions without instructions of their own, for tests on any machine.
const TileOps& emulated_tile_ops();
// tile_ops() and bf16_ops() return the emulation; for tests.
void emulate_tiles(bool on);

// Null where the machine has no AMX, or the compiler does not know it.
const TileOps* amx_tile_ops();

}  // namespace thalweg::cpu
