#include "cpu/amx_operands.h"

#if defined(__x86_64__)

#include <hwy/base.h>

#if !defined(__clang__)  // GCC's own headers
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "quant/blocks.h"
#include "quant/unpack.h"

// Compiled without contraction: a weight is rounded once more than dequantize rounds it, and not otherwise.
HWY_PUSH_ATTRIBUTES("f16c,fma,avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16");
namespace thalweg::cpu {
namespace {

__m256i loadu256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
__m128i loadu128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
void storeu(std::uint16_t* to, __m512i v) { _mm512_storeu_si512(to, v); }

// 32 values to bf16, in order.
__m512i to_bf16(__m512 low, __m512 high) {
  const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
  __m512i result;
  std::memcpy(&result, &rounded, sizeof(result));
  return result;
}
float scalar_of(Word16 half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half.bits()))); }
__m512 f32_of(Word16 half) { return _mm512_set1_ps(scalar_of(half)); }

// ---- Activations

// Values k0 .. k0 + count of a row, count at most 32, zeros after them; not finite: NaN.
__m512i load_values(DType dtype, const void* row, std::int64_t k0, std::int64_t count) {
  const auto mask = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
  const auto low = static_cast<__mmask16>(mask);
  const auto high = static_cast<__mmask16>(mask >> 16);
  __m512 v0;
  __m512 v1;
  if (dtype == DType::kF32) {
    const float* from = static_cast<const float*>(row) + k0;
    v0 = _mm512_maskz_loadu_ps(low, from);
    v1 = _mm512_maskz_loadu_ps(high, from + 16);
  } else {
    const std::uint16_t* from = static_cast<const std::uint16_t*>(row) + k0;
    const __m256i h0 = _mm256_maskz_loadu_epi16(low, from);
    const __m256i h1 = _mm256_maskz_loadu_epi16(high, from + 16);
    if (dtype == DType::kF16) {
      v0 = _mm512_cvtph_ps(h0);
      v1 = _mm512_cvtph_ps(h1);
    } else {
      v0 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h0), 16));
      v1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h1), 16));
    }
  }
  const __m512i rounded = to_bf16(v0, v1);
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  const __mmask32 wrong = _mm512_cmpeq_epi16_mask(_mm512_and_si512(rounded, exponent), exponent);
  return _mm512_mask_blend_epi16(wrong, rounded, _mm512_set1_epi16(0x7FC0));
}

// to[j][i] = from[i][j] of 16 x 16 words of 32 bits; rows of `to` are to_bytes apart. Masked broadcasts of 16 bytes
// from memory replace half of the shuffles.
void transpose_words(const void* from, void* to, std::int64_t to_bytes) {
  const auto* bytes = static_cast<const std::uint8_t*>(from);
  auto* result = static_cast<std::uint8_t*>(to);
  for (int quad = 0; quad < 4; ++quad) {
    const auto rows = [&](int first) {
      const std::uint8_t* at = bytes + 16 * quad + 64 * first;
      __m512i v = _mm512_castsi128_si512(loadu128(at));
      v = _mm512_mask_broadcast_i32x4(v, 0x00F0, loadu128(at + 4 * 64));
      v = _mm512_mask_broadcast_i32x4(v, 0x0F00, loadu128(at + 8 * 64));
      return _mm512_mask_broadcast_i32x4(v, 0xF000, loadu128(at + 12 * 64));
    };
    const __m512i row0 = rows(0);
    const __m512i row1 = rows(1);
    const __m512i row2 = rows(2);
    const __m512i row3 = rows(3);
    const __m512i low01 = _mm512_unpacklo_epi32(row0, row1);
    const __m512i low23 = _mm512_unpacklo_epi32(row2, row3);
    const __m512i high01 = _mm512_unpackhi_epi32(row0, row1);
    const __m512i high23 = _mm512_unpackhi_epi32(row2, row3);
    std::uint8_t* out = result + 4 * to_bytes * quad;
    _mm512_storeu_si512(out, _mm512_unpacklo_epi64(low01, low23));
    _mm512_storeu_si512(out + to_bytes, _mm512_unpackhi_epi64(low01, low23));
    _mm512_storeu_si512(out + 2 * to_bytes, _mm512_unpacklo_epi64(high01, high23));
    _mm512_storeu_si512(out + 3 * to_bytes, _mm512_unpackhi_epi64(high01, high23));
  }
}

// ---- Blocks: each 32 weights go to `to` + 32-weight group * kTileValues.
//
// Formats of up to five bits look their weights up: a group's values, one for each code, are rounded to bf16 together,
// and vpermw picks 32 of them at a time by the lower five bits of its indices.

// 16 values twice: the fifth bit of an index does not matter.
__m512i table_of(__m512 values) {
  const __m256bh rounded = _mm512_cvtneps_pbh(values);
  __m256i half;
  std::memcpy(&half, &rounded, sizeof(half));
  return _mm512_broadcast_i64x4(half);
}
__m512 numbers() {
  return _mm512_setr_ps(0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F, 8.0F, 9.0F, 10.0F, 11.0F, 12.0F, 13.0F, 14.0F,
                        15.0F);
}
__m512 plus(__m512 v, float value) { return _mm512_add_ps(v, _mm512_set1_ps(value)); }

// The low nibbles of 16 bytes, which have more bits above, then the high ones.
__m512i nibble_indices(const std::array<std::uint8_t, 16>& codes) {
  const __m256i words = _mm256_cvtepu8_epi16(loadu128(codes.data()));
  return _mm512_inserti64x4(_mm512_castsi256_si512(words), _mm256_srli_epi16(words, 4), 1);
}
__m512i five_bit_indices(const std::array<std::uint8_t, 16>& codes, const std::array<std::uint8_t, 4>& high) {
  __mmask32 bits = 0;
  std::memcpy(&bits, high.data(), sizeof(bits));
  const __m512i low = _mm512_and_si512(nibble_indices(codes), _mm512_set1_epi16(15));
  return _mm512_or_si512(low, _mm512_maskz_set1_epi16(bits, 16));
}

void decode_block(const BlockQ4_0& block, std::uint16_t* to) {
  const __m512i table = table_of(_mm512_mul_ps(f32_of(block.scale), plus(numbers(), -8.0F)));
  storeu(to, _mm512_permutexvar_epi16(nibble_indices(block.codes), table));
}
void decode_block(const BlockQ4_1& block, std::uint16_t* to) {
  const __m512 products = _mm512_mul_ps(f32_of(block.scale), numbers());
  const __m512i table = table_of(_mm512_add_ps(products, f32_of(block.minimum)));
  storeu(to, _mm512_permutexvar_epi16(nibble_indices(block.codes), table));
}
void decode_block(const BlockQ5_0& block, std::uint16_t* to) {
  const __m512 scale = f32_of(block.scale);
  const __m512i table = to_bf16(_mm512_mul_ps(scale, plus(numbers(), -16.0F)), _mm512_mul_ps(scale, numbers()));
  storeu(to, _mm512_permutexvar_epi16(five_bit_indices(block.codes, block.high), table));
}
void decode_block(const BlockQ5_1& block, std::uint16_t* to) {
  const __m512 scale = f32_of(block.scale);
  const __m512 minimum = f32_of(block.minimum);
  const __m512i table = to_bf16(_mm512_add_ps(_mm512_mul_ps(scale, numbers()), minimum),
                                _mm512_add_ps(_mm512_mul_ps(scale, plus(numbers(), 16.0F)), minimum));
  storeu(to, _mm512_permutexvar_epi16(five_bit_indices(block.codes, block.high), table));
}

__m512 floats_of(const std::array<std::int8_t, 16>& levels) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(loadu128(levels.data())));
}
void decode_block(const BlockIQ4_NL& block, std::uint16_t* to) {
  const __m512i table = table_of(_mm512_mul_ps(f32_of(block.scale), floats_of(kIq4Levels)));
  storeu(to, _mm512_permutexvar_epi16(nibble_indices(block.codes), table));
}

// 32 signed bytes times a scale for each 16.
__m512i scaled_bytes(__m256i codes, __m512 scale0, __m512 scale1) {
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
  return to_bf16(_mm512_mul_ps(scale0, low), _mm512_mul_ps(scale1, high));
}
void decode_block(const BlockQ8_0& block, std::uint16_t* to) {
  const __m512 scale = f32_of(block.scale);
  storeu(to, scaled_bytes(loadu256(block.codes.data()), scale, scale));
}

// Broadcasts of these values then come from memory, at no cost; the compiler would shuffle registers instead, and the
// port for shuffles is the busiest.
template <std::size_t kCount>
void keep_in_memory(std::array<float, kCount>& values) {
  asm("" : "+m"(values));
}

// Scales and minimums of the eight groups of Q4_K and Q5_K.
struct Groups {
  alignas(32) std::array<float, 8> scales;
  alignas(32) std::array<float, 8> minimums;

  Groups(Word16 scale, Word16 minimum, const std::array<std::uint8_t, 12>& groups) {
    std::array<std::uint32_t, 3> words;
    std::memcpy(words.data(), groups.data(), sizeof(words));
    constexpr std::uint32_t kSix = 0x3F3F3F3FU;
    constexpr std::uint32_t kFour = 0x0F0F0F0FU;
    constexpr std::uint32_t kTwo = 0x03030303U;
    const std::uint32_t high_scales = (words[2] & kFour) | (words[0] >> 6 & kTwo) << 4;
    const std::uint32_t high_minimums = (words[2] >> 4 & kFour) | (words[1] >> 6 & kTwo) << 4;
    _mm256_store_ps(scales.data(), multiples(scale, words[0] & kSix, high_scales));
    _mm256_store_ps(minimums.data(), multiples(minimum, words[1] & kSix, high_minimums));
    keep_in_memory(scales);
    keep_in_memory(minimums);
  }

  // Eight bytes times a scale.
  static __m256 multiples(Word16 scale, std::uint32_t low, std::uint32_t high) {
    const std::uint64_t bytes = low | std::uint64_t{high} << 32;
    const __m256i numbers = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<std::int64_t>(bytes)));
    return _mm256_mul_ps(_mm256_set1_ps(scalar_of(scale)), _mm256_cvtepi32_ps(numbers));
  }

  // scale code - minimum for sixteen codes.
  __m512 values(std::size_t group, __m512 codes) const {
    return _mm512_sub_ps(_mm512_mul_ps(_mm512_set1_ps(scales[group]), codes), _mm512_set1_ps(minimums[group]));
  }
};

void decode_block(const BlockQ4_K& block, std::uint16_t* to) {
  const Groups groups(block.scale, block.minimum, block.groups);
  for (std::size_t pair = 0; pair < 4; ++pair) {
    // One table for two groups: the fifth bit selects the second.
    const __m512i table = to_bf16(groups.values(2 * pair, numbers()), groups.values(2 * pair + 1, numbers()));
    const __m512i codes = _mm512_cvtepu8_epi16(loadu256(block.codes.data() + 32 * pair));
    const __m512i low = _mm512_and_si512(codes, _mm512_set1_epi16(15));
    const __m512i high = _mm512_or_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi16(16));
    storeu(to + 2 * pair * kTileValues, _mm512_permutexvar_epi16(low, table));
    storeu(to + (2 * pair + 1) * kTileValues, _mm512_permutexvar_epi16(high, table));
  }
}

void decode_block(const BlockQ5_K& block, std::uint16_t* to) {
  const Groups groups(block.scale, block.minimum, block.groups);
  const __m512 upper = plus(numbers(), 16.0F);
  const __m512i fifth = _mm512_set1_epi16(16);
  const __m512i nibble = _mm512_set1_epi16(15);
  __m512i high = _mm512_slli_epi16(_mm512_cvtepu8_epi16(loadu256(block.high.data())), 4);
  for (std::size_t pair = 0; pair < 4; ++pair) {
    const __m512i codes = _mm512_cvtepu8_epi16(loadu256(block.codes.data() + 32 * pair));
    const __m512i low = _mm512_or_si512(_mm512_and_si512(codes, nibble), _mm512_and_si512(high, fifth));
    high = _mm512_srli_epi16(high, 1);
    const __m512i top = _mm512_or_si512(_mm512_srli_epi16(codes, 4), _mm512_and_si512(high, fifth));
    high = _mm512_srli_epi16(high, 1);
    const auto put = [&](std::size_t group, __m512i indices) {
      const __m512i table = to_bf16(groups.values(group, numbers()), groups.values(group, upper));
      storeu(to + group * kTileValues, _mm512_permutexvar_epi16(indices, table));
    };
    put(2 * pair, low);
    put(2 * pair + 1, top);
  }
}

void decode_block(const BlockQ6_K& block, std::uint16_t* to) {
  alignas(64) std::array<float, 16> scales;
  const __m512 groups = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(loadu128(block.groups.data())));
  _mm512_store_ps(scales.data(), _mm512_mul_ps(f32_of(block.scale), groups));
  keep_in_memory(scales);
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i two = _mm256_set1_epi8(0x30);
  const __m256i offset = _mm256_set1_epi8(32);
  for (std::size_t h = 0; h < 2; ++h) {
    const __m256i high = loadu256(block.high.data() + 32 * h);
    const auto put = [&](std::size_t j, __m256i codes, __m256i bits) {  // the j-th 32 of the half's 128 weights
      const __m256i code = _mm256_or_si256(_mm256_and_si256(codes, nibble), _mm256_and_si256(bits, two));
      const std::size_t group = 8 * h + 2 * j;
      storeu(to + (4 * h + j) * kTileValues, scaled_bytes(_mm256_sub_epi8(code, offset), _mm512_set1_ps(scales[group]),
                                                          _mm512_set1_ps(scales[group + 1])));
    };
    const __m256i codes0 = loadu256(block.codes.data() + 64 * h);
    const __m256i codes1 = loadu256(block.codes.data() + 64 * h + 32);
    put(0, codes0, _mm256_slli_epi16(high, 4));
    put(1, codes1, _mm256_slli_epi16(high, 2));
    put(2, _mm256_srli_epi16(codes0, 4), high);
    put(3, _mm256_srli_epi16(codes1, 4), _mm256_srli_epi16(high, 2));
  }
}

// Any other format, by way of f32.
template <class Block>
void decode_block(const Block& block, std::uint16_t* to) {
  constexpr int kSize = dtype_info(Block::kDType).block_size;
  std::array<float, kSize> values;
  unpack_blocks(&block, 1, values.data());
  for (int i = 0; i < kSize; i += 32) {
    storeu(to + i / 32 * kTileValues,
           to_bf16(_mm512_loadu_ps(values.data() + i), _mm512_loadu_ps(values.data() + i + 16)));
  }
}

// The hardware does not follow 64 streams, one for each row of a task.
void prefetch_row(const void* ahead, std::int64_t offset, std::int64_t bytes) {
  if (ahead == nullptr) return;
  const char* from = static_cast<const char*>(ahead) + offset;
  for (std::int64_t at = 0; at < bytes; at += 64) _mm_prefetch(from + at, _MM_HINT_T1);
}

template <class Block>
void decode_rows(const WeightRows& weights, std::int64_t k0, std::int64_t count, const void* ahead,
                 std::uint16_t* tiles) {
  constexpr int kSize = dtype_info(Block::kDType).block_size;
  for (std::int64_t r = 0; r < weights.rows; ++r) {
    const char* row = static_cast<const char*>(weights.data) + r * weights.row_bytes;
    const auto* blocks = reinterpret_cast<const Block*>(row + bytes_of(weights.dtype, k0));
    std::uint16_t* to = tiles + r * kTileDepth;
    prefetch_row(ahead, r * weights.row_bytes, bytes_of(Block::kDType, count));
    for (std::int64_t b = 0; b < count / kSize; ++b) decode_block(blocks[b], to + b * (kSize / 32) * kTileValues);
  }
}

}  // namespace

void amx_pack(DType dtype, const void* const* rows, std::int64_t k, std::uint16_t* tiles) {
  alignas(64) std::array<std::uint16_t, kTileValues> staged{};
  for (std::int64_t k0 = 0; k0 < k; k0 += kTileDepth) {
    const std::int64_t count = std::min(kTileDepth, k - k0);
    for (std::int64_t i = 0; i < kTileSide; ++i) {
      if (rows[i] != nullptr) storeu(staged.data() + i * kTileDepth, load_values(dtype, rows[i], k0, count));
    }
    transpose_words(staged.data(), tiles + k0 * kTileSide, 2 * kTileDepth);
  }
}

void amx_decode(const WeightRows& weights, std::int64_t k0, std::int64_t count, const void* ahead,
                std::uint16_t* tiles) {
  const std::int64_t steps = (count + kTileDepth - 1) / kTileDepth;
  if (weights.rows < kTileSide) std::memset(tiles, 0, static_cast<std::size_t>(steps * kTileValues) * sizeof(*tiles));
  if (is_block_format(weights.dtype)) {
    with_block_type(weights.dtype, [&]<class Block>() { decode_rows<Block>(weights, k0, count, ahead, tiles); });
    return;
  }
  for (std::int64_t r = 0; r < weights.rows; ++r) {
    const char* row = static_cast<const char*>(weights.data) + r * weights.row_bytes;
    prefetch_row(ahead, r * weights.row_bytes, bytes_of(weights.dtype, count));
    for (std::int64_t k = 0; k < count; k += kTileDepth) {
      storeu(tiles + k * kTileSide + r * kTileDepth,
             load_values(weights.dtype, row, k0 + k, std::min(kTileDepth, count - k)));
    }
  }
}

void amx_round(const float* from, std::int64_t n, std::uint16_t* to) {
  for (std::int64_t i = 0; i < n; i += kTileDepth) {
    storeu(to + i, to_bf16(_mm512_loadu_ps(from + i), _mm512_loadu_ps(from + i + 16)));
  }
}

void amx_pair_rows(const float* even, const float* odd, std::int64_t n, std::uint16_t* tiles,
                   std::int64_t tile_stride) {
  alignas(64) static constexpr std::array<std::uint16_t, 32> kOrder{0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                    21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                    11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kOrder.data());
  for (std::int64_t i = 0; i < n; i += kTileSide) {
    const __m512i both = to_bf16(_mm512_loadu_ps(even + i), _mm512_loadu_ps(odd + i));
    storeu(tiles + i / kTileSide * tile_stride, _mm512_permutexvar_epi16(order, both));
  }
}

void amx_transpose(const void* from, std::int64_t tiles, void* to) {
  constexpr std::int64_t kWord = 4;
  for (std::int64_t t = 0; t < tiles; ++t) {
    transpose_words(static_cast<const std::uint8_t*>(from) + t * kTileSums * kWord,
                    static_cast<std::uint8_t*>(to) + t * kTileSide * kWord, kBlockTiles * kTileSide * kWord);
  }
}

}  // namespace thalweg::cpu
HWY_POP_ATTRIBUTES
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif
