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

#include "cpu/code_products-inl.h"
#include "cpu/weight_matmul.h"
#include "cpu/weight_tiles-inl.h"

THALWEG_MATMUL_BEFORE_NAMESPACE();
namespace thalweg::cpu {
namespace HWY_NAMESPACE {
namespace {

// Activation rows that share the loads of a segment of weights: as many as the registers hold sums for.
constexpr int kExactRows = kLanes == 16 ? 6 : 3;  // times four sums
constexpr int kFewRows = kLanes == 16 ? 4 : 2;    // multiplied without unpacking the weights to memory

// ---- Scratch

struct Buffers {
  float* tiles;          // kQ8Tiles
  float* panel;          // [kSegment][kLanes] f32 weights
  std::uint8_t* staged;  // kLanes rows of a segment, for partial tiles and segments

  Tile tile(std::int64_t i) const { return Tile::at(tiles + i * kTileFloats); }
};
constexpr std::int64_t kPanelFloats = std::int64_t{kSegment} * kLanes;
constexpr std::int64_t kScratchFloats = kQ8Tiles * kTileFloats + 2 * kPanelFloats;

Buffers lay_out(float* scratch) {
  Buffers buffers{};
  buffers.tiles = scratch;
  buffers.panel = buffers.tiles + kQ8Tiles * kTileFloats;
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
  const auto* data = static_cast<const std::uint8_t*>(weights.next) + weights.rows * bytes_of(weights.dtype, k0);
  const std::int64_t bytes = weights.rows * bytes_of(weights.dtype, count);
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
  const Tile tile = buffers.tile(0);
  const int group = group_size(weights.dtype);
  std::fill_n(sums, m * kLanes, 0.0F);
  for (std::int64_t k0 = 0; k0 < weights.k; k0 += kSegment) {
    const std::int64_t count = std::min<std::int64_t>(kSegment, weights.k - k0);
    const Rows rows = segment_rows(weights, k0, count, buffers);
    prefetch_segment(weights, k0);
    prefetch_next(weights, k0, count);
    if (is_block_format(weights.dtype)) {
      decode_segment(weights.dtype, rows, count, tile);
      if (m <= kFewRows) {
        unroll<kFewRows>([&](auto i) {
          if (m == i + 1) multiply_tile<i + 1>(tile, group, count, activations, k0, sums);
        });
        continue;
      }
      unpack_tile(tile, group, count, buffers.panel);
    } else {
      load_panel(weights.dtype, rows, (count + 7) / 8 * 8, buffers.panel);
    }
    for_row_bands<kExactRows>(m, [&](auto band, std::int64_t i) {
      multiply_panel<band>(buffers.panel, count, activations + i, k0, sums + i * kLanes);
    });
  }
}

// ---- 8-bit activations

void q8_one_row(const WeightRows& weights, const Q8Row& x, float* sums, const Buffers& buffers) {
  std::fill_n(sums, kLanes, 0.0F);
  const auto* data = static_cast<const std::uint8_t*>(weights.data);
  const auto* next = weights.rows == kLanes ? static_cast<const std::uint8_t*>(weights.next) : nullptr;
  const auto dot = [&](Rows rows, std::int64_t count, std::int64_t k0) {
    const std::uint8_t* ahead = next == nullptr ? nullptr : next + kLanes * bytes_of(weights.dtype, k0);
    with_format(weights.dtype, [&](const auto* format) HWY_ATTR { dot_rows(format, rows, count, ahead, x, k0, sums); });
  };
  if (weights.rows == kLanes && weights.prefetched) {
    return dot({data, static_cast<std::ptrdiff_t>(weights.row_bytes)}, weights.k, 0);
  }
  for (std::int64_t k0 = 0; k0 < weights.k; k0 += kSegment) {
    const std::int64_t count = std::min<std::int64_t>(kSegment, weights.k - k0);
    const Rows rows = segment_rows(weights, k0, count, buffers);
    prefetch_segment(weights, k0);
    dot(rows, count, k0);
  }
}

template <class Products, int kTiles>
HWY_NOINLINE void multiply_q8_segment(const Q8Segment& segment, const float* const* activations, std::int64_t m,
                                      float* sums) {
  for_row_bands<kQ8Rows<kTiles>>(m, [&](auto band, std::int64_t i) {
    multiply_q8<Products, kTiles, band>(segment, activations + i, sums + i * kTiles * kLanes);
  });
}

template <class Products>
HWY_NOINLINE void multiply_q8_tiles(std::int64_t tiles, const Q8Segment& segment, const float* const* activations,
                                    std::int64_t m, float* sums) {
  if constexpr (kQ8Tiles > 1) {
    if (tiles == kQ8Tiles) return multiply_q8_segment<Products, kQ8Tiles>(segment, activations, m, sums);
  }
  multiply_q8_segment<Products, 1>(segment, activations, m, sums);
}

void q8(const WeightRows& weights, const float* const* activations, std::int64_t m, float* sums, float* scratch) {
  const Buffers buffers = lay_out(scratch);
  if (m == 1) return q8_one_row(weights, Q8Row(activations[0], weights.k), sums, buffers);
  const std::int64_t tiles = (weights.rows + kLanes - 1) / kLanes;
  std::fill_n(sums, m * tiles * kLanes, 0.0F);
  for (std::int64_t k0 = 0; k0 < weights.k; k0 += kSegment) {
    const std::int64_t count = std::min<std::int64_t>(kSegment, weights.k - k0);
    prefetch_segment(weights, k0);
    prefetch_next(weights, k0, count);
    for (std::int64_t t = 0; t < tiles; ++t) {
      WeightRows tile = weights;
      tile.data = static_cast<const std::uint8_t*>(weights.data) + t * kLanes * weights.row_bytes;
      tile.rows = std::min<std::int64_t>(kLanes, weights.rows - t * kLanes);
      decode_segment(weights.dtype, segment_rows(tile, k0, count, buffers), count, buffers.tile(t));
    }
    const Q8Segment segment{buffers.tile(0), weights.k, k0, count, code_center(weights.dtype)};
    with_format(weights.dtype, [&](const auto* format) HWY_ATTR {
      multiply_q8_tiles<ProductsOf<decltype(*format)>>(tiles, segment, activations, m, sums);
    });
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
  auto* code_sums16 = reinterpret_cast<std::int16_t*>(sums32 + k / 32);
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
      code_sums16[2 * g] = code_sums16[2 * g + 1] = 0;
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
    const std::int32_t low_sum = hn::GetLane(hn::SumOfLanes(kI32, low));
    const std::int32_t high_sum = hn::GetLane(hn::SumOfLanes(kI32, high));
    scales[g] = scale;
    sums16[2 * g] = scale * static_cast<float>(low_sum);
    sums16[2 * g + 1] = scale * static_cast<float>(high_sum);
    sums32[g] = scale * static_cast<float>(low_sum + high_sum);
    code_sums16[2 * g] = static_cast<std::int16_t>(low_sum);
    code_sums16[2 * g + 1] = static_cast<std::int16_t>(high_sum);
  }
}

}  // namespace

const MatmulOps& THALWEG_MATMUL_OPS() {
  static constexpr MatmulOps instance{kLanes, kQ8Tiles * kLanes, kScratchFloats, exact, q8, quantize};
  return instance;
}

}  // namespace HWY_NAMESPACE
}  // namespace thalweg::cpu
HWY_AFTER_NAMESPACE();

#endif
