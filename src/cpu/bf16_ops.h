#pragma once

// Products of bf16 matrices, for operations whose operands are computed, not weights in blocks: by AMX, or by the dot
// products of AVX-512. Operands are those of cpu/tile_ops.h.

#include "cpu/tile_ops.h"

namespace thalweg::cpu {

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

struct Bf16Ops {
  // As in TileOps.
  void (*pack)(DType dtype, const void* const* rows, std::int64_t k, std::uint16_t* tiles);
  // a_tiles and b_tiles are even.
  void (*multiply)(const TileProduct& product);
  // n values, a multiple of 32, to bf16.
  void (*round)(const float* from, std::int64_t n, std::uint16_t* to);
  // Rows 2 j and 2 j + 1 of a matrix [K,N], rounded to bf16, as row j of the activation tiles of its transpose: value n
  // of both goes to tile n / 16, tile_stride values apart. N is a multiple of 16.
  void (*pair_rows)(const float* even, const float* odd, std::int64_t n, std::uint16_t* tiles,
                    std::int64_t tile_stride);
  // As in TileOps.
  void (*transpose)(const void* from, std::int64_t tiles, void* to);
};

// The fastest of this machine, if the selected instruction set is the one with AVX-512; null if there is none.
const Bf16Ops* bf16_ops();

// Null where the machine has no AMX, or no bf16 in AVX-512, or the compiler does not know it.
const Bf16Ops* amx_bf16_ops();
const Bf16Ops* avx512_bf16_ops();
const Bf16Ops& emulated_bf16_ops();

}  // namespace thalweg::cpu
