// Bf16Ops without a matrix unit: VDPBF16PS, 16 sums of two products each.

#include "cpu/bf16_ops.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <hwy/base.h>

#if !defined(__clang__)  // GCC's own headers
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "cpu/amx_operands.h"

HWY_PUSH_ATTRIBUTES("avx2,avx512f,avx512bw,avx512vl,avx512bf16");
namespace thalweg::cpu {
namespace {

constexpr int kRows = 8;  // times two tiles of columns: 16 sums hide the latency of a product

__m512bh pairs(__m512i words) {
  __m512bh result;
  std::memcpy(&result, &words, sizeof(result));
  return result;
}
__m512bh load_pairs(const std::uint16_t* from) { return pairs(_mm512_loadu_si512(from)); }
__m512bh repeat_pair(const std::uint16_t* from) {
  int word = 0;
  std::memcpy(&word, from, sizeof(word));
  return pairs(_mm512_set1_epi32(word));
}

// kRows rows of c by two tiles of columns.
void multiply_block(const TileProduct& product, const std::uint16_t* a, const std::uint16_t* b, float* c) {
  __m512 sums[kRows][2];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const float* const from = c + i * product.c_row;
    sums[i][0] = product.accumulate ? _mm512_loadu_ps(from) : _mm512_setzero_ps();
    sums[i][1] = product.accumulate ? _mm512_loadu_ps(from + kTileSide) : _mm512_setzero_ps();
  }
  for (std::int64_t pair = 0; pair < product.steps * kTileDepth / 2; ++pair) {
    const __m512bh b0 = load_pairs(b + pair * 2 * kTileSide);
    const __m512bh b1 = load_pairs(b + product.b_stride + pair * 2 * kTileSide);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512bh row = repeat_pair(a + i * product.a_row + 2 * pair);
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], row, b0);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], row, b1);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    _mm512_storeu_ps(c + i * product.c_row, sums[i][0]);
    _mm512_storeu_ps(c + i * product.c_row + kTileSide, sums[i][1]);
  }
}

// Two tiles of columns stay in the first-level cache for all rows.
void multiply(const TileProduct& product) {
  for (std::int64_t j = 0; j < product.b_tiles; j += 2) {
    for (std::int64_t i = 0; i < product.a_tiles * kTileSide; i += kRows) {
      multiply_block(product, product.a + i * product.a_row, product.b + j * product.b_stride,
                     product.c + i * product.c_row + j * kTileSide);
    }
  }
}

}  // namespace
}  // namespace thalweg::cpu
HWY_POP_ATTRIBUTES
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace thalweg::cpu {

const Bf16Ops* avx512_bf16_ops() {
  static const bool known = [] {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    constexpr unsigned kBf16Vectors = 1U << 5;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kBf16Vectors) != 0;
  }();
  static constexpr Bf16Ops kInstance{amx_pack, multiply, amx_round, amx_pair_rows, amx_transpose};
  // Of the instruction sets for x86, AVX-512 alone has vectors of 16 floats.
  return known && matmul_ops().tile_rows == kMaxTileRows ? &kInstance : nullptr;
}

}  // namespace thalweg::cpu

#else

namespace thalweg::cpu {

const Bf16Ops* avx512_bf16_ops() { return nullptr; }

}  // namespace thalweg::cpu

#endif
