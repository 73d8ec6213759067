// The products of weight_matmul.h. Included once per instruction set by weight_matmul.cc, and on ARM by the files of
// its dot products, which define THALWEG_ARM_DOTS and the name THALWEG_MATMUL_OPS.

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#if defined(THALWEG_CPU_WEIGHT_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THALWEG_CPU_WEIGHT_PRODUCTS_INL_H
#undef THALWEG_CPU_WEIGHT_PRODUCTS_INL_H
#else
#define THALWEG_CPU_WEIGHT_PRODUCTS_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "cpu/weight_matmul.h"
#include "cpu/weight_tiles-inl.h"
#if HWY_ARCH_ARM_A64
#include "cpu/arm_dots-inl.h"
#endif

THALWEG_MATMUL_BEFORE_NAMESPACE();
namespace thalweg::cpu {
namespace HWY_NAMESPACE {
namespace {

// Activation rows that share the loads of a segment of weights: as many as the registers hold sums for.
constexpr int kExactRows = kLanes == 16 ? 6 : 3;  // times four sums
constexpr int kFewRows = kLanes == 16 ? 4 : 2;    // multiplied without unpacking the weights to memory
constexpr int kQ8Rows = kLanes == 16 ? 8 : 4;     // times two

// ---- Scratch

struct Buffers {
  Tile tile;
  float* panel;          // [kSegment][kLanes] f32 weights
  std::uint8_t* staged;  // kLanes rows of a segment, for partial tiles and segments
};
constexpr std::int64_t kTileFloats = kSegment / 4 * kLanes;
constexpr std::int64_t kGroupFloats = kSegment / 16 * kLanes;
constexpr std::int64_t kPanelFloats = std::int64_t{kSegment} * kLanes;
constexpr std::int64_t kScratchFloats = kTileFloats + 2 * kGroupFloats + 2 * kPanelFloats;

Buffers lay_out(float* scratch) {
  Buffers buffers{};
  buffers.tile.codes = reinterpret_cast<std::uint32_t*>(scratch);
  buffers.tile.scales = scratch + kTileFloats;
  buffers.tile.minimums = buffers.tile.scales + kGroupFloats;
  buffers.panel = buffers.tile.minimums + kGroupFloats;
  buffers.staged = reinterpret_cast<std::uint8_t*>(buffers.panel + kPanelFloats);
  return buffers;
}

// Weights k0 .. k0 + count of the rows. For a partial tile or segment, a copy padded with zeros to whole vectors.
Rows segment_rows(const WeightRows& weights, std::int64_t k0, std::int64_t count, const Buffers& buffers) {
  const auto* data = static_cast<const std::uint8_t*>(weights.data) + bytes_of(weights.dtype, k0);
  const bool plain = !is_block_format(weights.dtype);
  if (weights.rows == kLanes && (!plain || count % 8 == 0)) {
    return {data, static_cast<std::ptrdiff_t>(weights.row_bytes)};
  }
  const std::int64_t padded = plain ? (count + 7) / 8 * 8 : count;
  const auto stride = static_cast<std::size_t>(bytes_of(weights.dtype, padded));
  const auto bytes = static_cast<std::size_t>(bytes_of(weights.dtype, count));
  std::memset(buffers.staged, 0, stride * kLanes);
  for (std::int64_t r = 0; r < weights.rows; ++r) {
    std::memcpy(buffers.staged + static_cast<std::size_t>(r) * stride, data + r * weights.row_bytes, bytes);
  }
  return {buffers.staged, static_cast<std::ptrdiff_t>(stride)};
}

void decode_segment(DType dtype, Rows rows, std::int64_t count, Tile tile) {
  with_format(dtype, [&](const auto* format) HWY_ATTR { decode_segment(format, rows, count, tile); });
}

// Prefetching during the arithmetic of a segment. The next segment of these rows is in 16 separate streams, which the
// hardware does not prefetch; the same segment of the rows that follow is one stream, which also trains it.
HWY_INLINE void prefetch_segment(const WeightRows& weights, std::int64_t k0) {
  const std::int64_t k1 = k0 + kSegment;
  if (weights.prefetched || k1 >= weights.k) return;
  const auto* data = static_cast<const std::uint8_t*>(weights.data) + bytes_of(weights.dtype, k1);
  const std::int64_t bytes = bytes_of(weights.dtype, std::min<std::int64_t>(kSegment, weights.k - k1));
  for (std::int64_t r = 0; r < weights.rows; ++r) {
    const std::uint8_t* row = data + r * weights.row_bytes;
    for (std::int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(row + at);
  }
}
HWY_INLINE void prefetch_next(const WeightRows& weights, std::int64_t k0, std::int64_t count) {
  if (weights.next == nullptr) return;
  const auto* data = static_cast<const std::uint8_t*>(weights.next) + kLanes * bytes_of(weights.dtype, k0);
  const std::int64_t bytes = kLanes * bytes_of(weights.dtype, count);
  for (std::int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(data + at);
}

// ---- f32 activations

// Calls body(std::integral_constant<int, rows>, first row) for bands of at most kMost rows that cover m.
template <int kMost, class Body>
HWY_INLINE void for_row_bands(std::int64_t m, Body body) {
  std::int64_t i = 0;
  for (; i + kMost <= m; i += kMost) body(std::integral_constant<int, kMost>(), i);
  if constexpr (kMost > 4) {
    for (; i + 4 <= m; i += 4) body(std::integral_constant<int, 4>(), i);
  }
  for (; i + 2 <= m; i += 2) body(std::integral_constant<int, 2>(), i);
  if (i < m) body(std::integral_constant<int, 1>(), i);
}

// Adds a segment's four sums (of the weights 0, 1, 2 and 3 mod 4) to the row's.
HWY_INLINE void add_sums(VF sum0, VF sum1, VF sum2, VF sum3, float* sums) {
  const VF sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  hn::StoreU(hn::Add(hn::LoadU(kF32, sums), sum), kF32, sums);
}

template <int kRows>
HWY_INLINE void multiply_panel(const float* panel, std::int64_t count, const float* const* activations, std::int64_t k0,
                               float* sums) {
  VF acc[kRows][4];
  const float* x[kRows];
  for (int i = 0; i < kRows; ++i) {
    x[i] = activations[i] + k0;
    for (VF& sum : acc[i]) sum = hn::Zero(kF32);
  }
  std::int64_t k = 0;
  for (; k + 4 <= count; k += 4) {
    for (int j = 0; j < 4; ++j) {
      const VF w = hn::LoadU(kF32, panel + (k + j) * kLanes);
      for (int i = 0; i < kRows; ++i) acc[i][j] = hn::MulAdd(w, hn::Set(kF32, x[i][k + j]), acc[i][j]);
    }
  }
  for (; k < count; ++k) {
    const VF w = hn::LoadU(kF32, panel + k * kLanes);
    for (int i = 0; i < kRows; ++i) acc[i][0] = hn::MulAdd(w, hn::Set(kF32, x[i][k]), acc[i][0]);
  }
  for (int i = 0; i < kRows; ++i) add_sums(acc[i][0], acc[i][1], acc[i][2], acc[i][3], sums + i * kLanes);
}

// Code kByte of each lane's four, as a weight.
template <int kByte>
HWY_INLINE VF unpack_code(VU codes, VF scale, VF minimum) {
  const VU shifted = hn::ShiftRight<8 * kByte>(codes);
  const VU code = kByte == 3 ? shifted : hn::And(shifted, hn::Set(kU32, 255));
  return hn::MulSub(to_float(code), scale, minimum);
}

void unpack_tile(Tile tile, int group, std::int64_t count, float* panel) {
  for (int g = 0; g < count / group; ++g) {
    const VF scale = hn::LoadU(kF32, tile.scales + g * kLanes);
    const VF minimum = hn::LoadU(kF32, tile.minimums + g * kLanes);
    for (int word = g * group / 4; word < (g + 1) * group / 4; ++word) {
      const VU codes = hn::LoadU(kU32, tile.codes + word * kLanes);
      float* to = panel + 4 * word * kLanes;
      hn::StoreU(unpack_code<0>(codes, scale, minimum), kF32, to);
      hn::StoreU(unpack_code<1>(codes, scale, minimum), kF32, to + kLanes);
      hn::StoreU(unpack_code<2>(codes, scale, minimum), kF32, to + 2 * kLanes);
      hn::StoreU(unpack_code<3>(codes, scale, minimum), kF32, to + 3 * kLanes);
    }
  }
}

// The results of unpack_tile and multiply_panel without storing the weights, for few rows.
template <int kRows>
void multiply_tile(Tile tile, int group, std::int64_t count, const float* const* activations, std::int64_t k0,
                   float* sums) {
  VF acc[kRows][4];
  const float* x[kRows];
  for (int i = 0; i < kRows; ++i) {
    x[i] = activations[i] + k0;
    for (VF& sum : acc[i]) sum = hn::Zero(kF32);
  }
  for (int g = 0; g < count / group; ++g) {
    const VF scale = hn::LoadU(kF32, tile.scales + g * kLanes);
    const VF minimum = hn::LoadU(kF32, tile.minimums + g * kLanes);
    for (int word = g * group / 4; word < (g + 1) * group / 4; ++word) {
      const VU codes = hn::LoadU(kU32, tile.codes + word * kLanes);
      unroll<4>([&](auto j) {
        const VF w = unpack_code<j>(codes, scale, minimum);
        for (int i = 0; i < kRows; ++i) acc[i][j] = hn::MulAdd(w, hn::Set(kF32, x[i][4 * word + j]), acc[i][j]);
      });
    }
  }
  for (int i = 0; i < kRows; ++i) add_sums(acc[i][0], acc[i][1], acc[i][2], acc[i][3], sums + i * kLanes);
}

void exact(const WeightRows& weights, const float* const* activations, std::int64_t m, float* sums, float* scratch) {
  const Buffers buffers = lay_out(scratch);
  const int group = group_size(weights.dtype);
  std::fill_n(sums, m * kLanes, 0.0F);
  for (std::int64_t k0 = 0; k0 < weights.k; k0 += kSegment) {
    const std::int64_t count = std::min<std::int64_t>(kSegment, weights.k - k0);
    const Rows rows = segment_rows(weights, k0, count, buffers);
    prefetch_segment(weights, k0);
    prefetch_next(weights, k0, count);
    if (is_block_format(weights.dtype)) {
      decode_segment(weights.dtype, rows, count, buffers.tile);
      if (m <= kFewRows) {
        unroll<kFewRows>([&](auto i) {
          if (m == i + 1) multiply_tile<i + 1>(buffers.tile, group, count, activations, k0, sums);
        });
        continue;
      }
      unpack_tile(buffers.tile, group, count, buffers.panel);
    } else {
      load_panel(weights.dtype, rows, (count + 7) / 8 * 8, buffers.panel);
    }
    for_row_bands<kExactRows>(m, [&](auto band, std::int64_t i) {
      multiply_panel<band>(buffers.panel, count, activations + i, k0, sums + i * kLanes);
    });
  }
}

// ---- 8-bit activations

// sum + the products of each lane's four unsigned codes with four signed bytes.
template <bool kNarrow>
HWY_INLINE hn::Vec<I32> dot4(hn::Vec<I32> sum, VU codes, std::int32_t bytes) {
#if HWY_ARCH_ARM_A64
  return arm_dot4<kNarrow>(sum, codes, bytes);
#elif HWY_TARGET == HWY_AVX3_DL
  return hn::Vec<I32>{_mm512_dpbusd_epi32(sum.raw, codes.raw, _mm512_set1_epi32(bytes))};
#else
  const hn::Repartition<std::int16_t, I32> d16;
  const auto x = hn::BitCast(d16, hn::Set(kI32, bytes));
  const auto w = hn::BitCast(d16, codes);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  if constexpr (kNarrow) {
    const auto ones = hn::Set(d16, 1);
#if HWY_TARGET == HWY_AVX2
    const auto pairs = _mm256_maddubs_epi16(w.raw, x.raw);
    return hn::Add(sum, hn::Vec<I32>{_mm256_madd_epi16(pairs, ones.raw)});
#else
    const auto pairs = _mm_maddubs_epi16(w.raw, x.raw);
    return hn::Add(sum, hn::Vec<I32>{_mm_madd_epi16(pairs, ones.raw)});
#endif
  }
#endif
  // Bytes 0 and 2, then 1 and 3, widened in place: two 16-bit products per lane each.
  const hn::Repartition<std::uint16_t, I32> du16;
  const auto w_even = hn::And(w, hn::Set(d16, 255));
  const auto w_odd = hn::BitCast(d16, hn::ShiftRight<8>(hn::BitCast(du16, w)));
  const auto x_even = hn::ShiftRight<8>(hn::ShiftLeft<8>(x));
  const auto x_odd = hn::ShiftRight<8>(x);
#if HWY_TARGET == HWY_AVX2
  return hn::Add(sum, hn::Add(hn::Vec<I32>{_mm256_madd_epi16(w_even.raw, x_even.raw)},
                              hn::Vec<I32>{_mm256_madd_epi16(w_odd.raw, x_odd.raw)}));
#elif HWY_TARGET == HWY_SSE4
  return hn::Add(sum, hn::Add(hn::Vec<I32>{_mm_madd_epi16(w_even.raw, x_even.raw)},
                              hn::Vec<I32>{_mm_madd_epi16(w_odd.raw, x_odd.raw)}));
#else
  const auto halves = [](auto v) {  // signed 16-bit halves of each lane
    const auto lanes = hn::BitCast(kI32, v);
    return std::pair(hn::ShiftRight<16>(hn::ShiftLeft<16>(lanes)), hn::ShiftRight<16>(lanes));
  };
  const auto [w0, w2] = halves(w_even);
  const auto [w1, w3] = halves(w_odd);
  const auto [x0, x2] = halves(x_even);
  const auto [x1, x3] = halves(x_odd);
  sum = hn::Add(sum, hn::Add(hn::Mul(w0, x0), hn::Mul(w1, x1)));
  return hn::Add(sum, hn::Add(hn::Mul(w2, x2), hn::Mul(w3, x3)));
#endif
#endif
}

struct Q8Row {
  const std::int8_t* codes;  // [K]
  const float* scales;       // [K/32]
  const float* sums16;       // [K/16]
  const float* sums32;       // [K/32]

  Q8Row(const float* row, std::int64_t k)
      : codes(reinterpret_cast<const std::int8_t*>(row)),
        scales(row + k / 4),
        sums16(scales + k / 32),
        sums32(sums16 + k / 16) {}
};

// dots[i] = the products of words first..end of a tile with row i, whose codes are x[i].
template <int kRows, bool kNarrow>
HWY_INLINE void multiply_group(Tile tile, int first, int end, const std::int8_t* const* x, hn::Vec<I32>* dots) {
#if THALWEG_ARM_DOTS == 2
  if constexpr (kRows % 2 == 0) return multiply_row_pairs<kRows>(tile, first, end, x, dots);
#endif
  for (int i = 0; i < kRows; ++i) dots[i] = hn::Zero(kI32);
  for (int word = first; word < end; ++word) {
    const VU codes = hn::LoadU(kU32, tile.codes + word * kLanes);
    for (int i = 0; i < kRows; ++i) {
      std::int32_t bytes = 0;
      std::memcpy(&bytes, x[i] + 4 * word, sizeof(bytes));
      dots[i] = dot4<kNarrow>(dots[i], codes, bytes);
    }
  }
}

template <int kRows, int kGroup, bool kNarrow>
HWY_INLINE void multiply_q8(Tile tile, std::int64_t count, const float* const* activations, std::int64_t k,
                            std::int64_t k0, float* sums) {
  const std::int8_t* x[kRows];
  const float* scales[kRows];
  const float* group_sums[kRows];
  VF total[kRows];
  for (int i = 0; i < kRows; ++i) {
    const Q8Row row(activations[i], k);
    x[i] = row.codes + k0;
    scales[i] = row.scales + k0 / 32;
    group_sums[i] = kGroup == 16 ? row.sums16 + k0 / 16 : row.sums32 + k0 / 32;
    total[i] = hn::LoadU(kF32, sums + i * kLanes);
  }
  for (int g = 0; g < count / kGroup; ++g) {
    hn::Vec<I32> dots[kRows];
    multiply_group<kRows, kNarrow>(tile, g * (kGroup / 4), (g + 1) * (kGroup / 4), x, dots);
    const VF scale = hn::LoadU(kF32, tile.scales + g * kLanes);
    const VF minimum = hn::LoadU(kF32, tile.minimums + g * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const VF product = hn::Mul(hn::ConvertTo(kF32, dots[i]), hn::Set(kF32, scales[i][g * kGroup / 32]));
      const VF offset = hn::Mul(minimum, hn::Set(kF32, group_sums[i][g]));
      total[i] = hn::Add(total[i], hn::MulSub(product, scale, offset));
    }
  }
  for (int i = 0; i < kRows; ++i) hn::StoreU(total[i], kF32, sums + i * kLanes);
}

// A sink of decode() that multiplies the codes at once instead of storing them, for one row of activations.
template <class Block>
struct DotSink {
  static constexpr DTypeInfo kInfo = dtype_info(Block::kDType);
  static constexpr int kGroupWords = group_size(Block::kDType) / 4;
  static constexpr int kGroups = kInfo.block_size / group_size(Block::kDType);
  static constexpr int kLines = (kInfo.block_bytes * kLanes + 63) / 64;

  const std::int8_t* x;  // codes of the activations
  hn::Vec<I32> dots[kGroups];
  VF scales[kGroups];
  VF minimums[kGroups];

  // Prefetches one block of each row: more would fill the core's line fill buffers, less would leave them idle.
  HWY_INLINE DotSink(const std::int8_t* codes, const std::uint8_t* next) : x(codes) {
    for (int line = 0; line < kLines; ++line) hwy::Prefetch(next + 64 * line);
    // A mapped file has small pages: a prefetch some pages ahead starts the address translation early.
    constexpr int kPagesAhead = 4;
    hwy::Prefetch(next + 64 * kLines + 4096 * kPagesAhead);
    for (auto& dot : dots) dot = hn::Zero(kI32);
  }
  HWY_INLINE void put(int word, VU codes) {
    std::int32_t bytes = 0;
    std::memcpy(&bytes, x + 4 * word, sizeof(bytes));
    dots[word / kGroupWords] = dot4<narrow_codes(Block::kDType)>(dots[word / kGroupWords], codes, bytes);
  }
  HWY_INLINE void put_group(int group, VF scale, VF minimum) {
    scales[group] = scale;
    minimums[group] = minimum;
  }
};

// The sums of multiply_q8 for one row, with the same bits: weights k0 .. k0 + count of every row. Prefetches `ahead`.
template <class Block>
HWY_NOINLINE void dot_rows(const Block* format, Rows rows, std::int64_t count, const std::uint8_t* ahead,
                           const Q8Row& activations, std::int64_t k0, float* sums) {
  using Sink = DotSink<Block>;
  constexpr int kGroup = group_size(Block::kDType);
  const std::int8_t* x = activations.codes + k0;
  const float* scales = activations.scales + k0 / 32;
  const float* group_sums = kGroup == 16 ? activations.sums16 + k0 / 16 : activations.sums32 + k0 / 32;
  VF total = hn::LoadU(kF32, sums);
  for (std::int64_t b = 0; b < count / Sink::kInfo.block_size; ++b) {
    Sink sink(x, ahead);
    decode(format, rows, sink);
    unroll<Sink::kGroups>([&](auto i) HWY_ATTR {
      const VF product = hn::Mul(hn::ConvertTo(kF32, sink.dots[i]), hn::Set(kF32, scales[i * kGroup / 32]));
      const VF offset = hn::Mul(sink.minimums[i], hn::Set(kF32, group_sums[i]));
      total = hn::Add(total, hn::MulSub(product, sink.scales[i], offset));
    });
    rows = rows + Sink::kInfo.block_bytes;
    ahead += Sink::kInfo.block_bytes * kLanes;
    x += Sink::kInfo.block_size;
    scales += Sink::kInfo.block_size / 32;
    group_sums += Sink::kGroups;
  }
  hn::StoreU(total, kF32, sums);
}

void q8_one_row(const WeightRows& weights, const Q8Row& x, float* sums, const Buffers& buffers) {
  std::fill_n(sums, kLanes, 0.0F);
  const auto* data = static_cast<const std::uint8_t*>(weights.data);
  // Nothing follows the last tile: it prefetches itself, which costs nothing.
  const auto* next = weights.next != nullptr ? static_cast<const std::uint8_t*>(weights.next) : data;
  const auto dot = [&](Rows rows, std::int64_t count, const std::uint8_t* ahead, std::int64_t k0) {
    with_format(weights.dtype, [&](const auto* format) HWY_ATTR { dot_rows(format, rows, count, ahead, x, k0, sums); });
  };
  if (weights.rows == kLanes && weights.prefetched) {
    dot({data, static_cast<std::ptrdiff_t>(weights.row_bytes)}, weights.k, next, 0);
    return;
  }
  for (std::int64_t k0 = 0; k0 < weights.k; k0 += kSegment) {
    const std::int64_t count = std::min<std::int64_t>(kSegment, weights.k - k0);
    const Rows rows = segment_rows(weights, k0, count, buffers);
    prefetch_segment(weights, k0);
    dot(rows, count, weights.rows == kLanes ? next + kLanes * bytes_of(weights.dtype, k0) : rows.data, k0);
  }
}

template <int kGroup, bool kNarrow>
HWY_NOINLINE void multiply_q8_segment(Tile tile, std::int64_t count, const float* const* activations, std::int64_t m,
                                      std::int64_t k, std::int64_t k0, float* sums) {
  for_row_bands<kQ8Rows>(m, [&](auto band, std::int64_t i) {
    multiply_q8<band, kGroup, kNarrow>(tile, count, activations + i, k, k0, sums + i * kLanes);
  });
}

void q8(const WeightRows& weights, const float* const* activations, std::int64_t m, float* sums, float* scratch) {
  const Buffers buffers = lay_out(scratch);
  if (m == 1) return q8_one_row(weights, Q8Row(activations[0], weights.k), sums, buffers);
  const auto multiply = group_size(weights.dtype) == 16 ? multiply_q8_segment<16, true>
                        : narrow_codes(weights.dtype)   ? multiply_q8_segment<32, true>
                                                        : multiply_q8_segment<32, false>;
  std::fill_n(sums, m * kLanes, 0.0F);
  for (std::int64_t k0 = 0; k0 < weights.k; k0 += kSegment) {
    const std::int64_t count = std::min<std::int64_t>(kSegment, weights.k - k0);
    const Rows rows = segment_rows(weights, k0, count, buffers);
    prefetch_segment(weights, k0);
    prefetch_next(weights, k0, count);
    decode_segment(weights.dtype, rows, count, buffers.tile);
    multiply(buffers.tile, count, activations, m, weights.k, k0, sums);
  }
}

// 32 values of a plain type.
HWY_INLINE void load_group(DType dtype, const void* x, std::int64_t first, float* to) {
  const auto* half = static_cast<const std::uint16_t*>(x) + first;
  const hn::Rebind<std::uint16_t, F32> d16;
  for (int i = 0; i < 32; i += kLanes) {
    if (dtype == DType::kBF16) {
      const VU bits = hn::ShiftLeft<16>(hn::PromoteTo(kU32, hn::LoadU(d16, half + i)));
      hn::StoreU(hn::BitCast(kF32, bits), kF32, to + i);
    } else if (dtype == DType::kF16) {
      const hn::Rebind<hwy::float16_t, F32> d_half;
      hn::StoreU(hn::PromoteTo(kF32, hn::BitCast(d_half, hn::LoadU(d16, half + i))), kF32, to + i);
    } else {
      hn::StoreU(hn::LoadU(kF32, static_cast<const float*>(x) + first + i), kF32, to + i);
    }
  }
}

void quantize(DType dtype, const void* x, std::int64_t k, float* row) {
  auto* codes = reinterpret_cast<std::int8_t*>(row);
  float* scales = row + k / 4;
  float* sums16 = scales + k / 32;
  float* sums32 = sums16 + k / 16;
  const hn::Rebind<std::int8_t, I32> d8;
  for (std::int64_t g = 0; g < k / 32; ++g) {
    std::array<float, 32> values;
    load_group(dtype, x, 32 * g, values.data());
    const float* from = values.data();
    // Compared as integers, magnitudes keep their order and NaN is above everything.
    auto largest_bits = hn::Zero(kI32);
    for (int i = 0; i < 32; i += kLanes) {
      const auto bits = hn::BitCast(kI32, hn::LoadU(kF32, from + i));
      largest_bits = hn::Max(largest_bits, hn::And(bits, hn::Set(kI32, 0x7FFFFFFF)));
    }
    const float largest = hn::GetLane(hn::BitCast(kF32, hn::MaxOfLanes(kI32, largest_bits)));
    if (!(largest <= std::numeric_limits<float>::max())) {
      std::fill_n(codes + 32 * g, 32, std::int8_t{0});
      scales[g] = sums16[2 * g] = sums16[2 * g + 1] = sums32[g] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    // Below 1e-36, 127 / largest overflows; such values count as zero.
    const float inverse = largest < 1e-36F ? 0.0F : 127.0F / largest;
    const float scale = largest < 1e-36F ? 0.0F : largest / 127.0F;
    const hn::Vec<F32> factor = hn::Set(kF32, inverse);
    auto low = hn::Zero(kI32);
    auto high = hn::Zero(kI32);
    for (int i = 0; i < 32; i += kLanes) {
      const auto code = hn::NearestInt(hn::Mul(hn::LoadU(kF32, from + i), factor));
      hn::StoreU(hn::DemoteTo(d8, code), d8, codes + 32 * g + i);
      (i < 16 ? low : high) = hn::Add(i < 16 ? low : high, code);
    }
    const auto low_sum = static_cast<float>(hn::GetLane(hn::SumOfLanes(kI32, low)));
    const auto high_sum = static_cast<float>(hn::GetLane(hn::SumOfLanes(kI32, high)));
    scales[g] = scale;
    sums16[2 * g] = scale * low_sum;
    sums16[2 * g + 1] = scale * high_sum;
    sums32[g] = scale * (low_sum + high_sum);
  }
}

}  // namespace

const MatmulOps& THALWEG_MATMUL_OPS() {
  static constexpr MatmulOps instance{kLanes, kScratchFloats, exact, q8, quantize};
  return instance;
}

}  // namespace HWY_NAMESPACE
}  // namespace thalweg::cpu
HWY_AFTER_NAMESPACE();

#endif
