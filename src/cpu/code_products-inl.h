// Products of decoded codes with activations of 8 bits. Included once per instruction set by weight_products-inl.h.
//
// Every 32 activations have a scale s, every group of 16 or 32 weights a scale w and either a center c, which all
// groups of the format share, or a minimum m: the sum of (w (code - c)) (s x), or of (w code - m) (s x). Sums over a
// group are integers, and a center is taken from them as c times the sum of x, so that what is left to do in floats is
// a multiple of w, one of s and, for formats with minimums, one of m:
//
//   total += s (w0 dot0 + w1 dot1) - m0 (s sum0) - m1 (s sum1)      two groups of 16
//   total += s (w dot) - m (s sum)                                  a group of 32
//
// in this order whatever the number of rows, which therefore does not change a row's bits.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "thalweg/dtype.h"

#if defined(THALWEG_CPU_CODE_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THALWEG_CPU_CODE_PRODUCTS_INL_H
#undef THALWEG_CPU_CODE_PRODUCTS_INL_H
#else
#define THALWEG_CPU_CODE_PRODUCTS_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "cpu/weight_tiles-inl.h"
#if HWY_ARCH_ARM_A64
#include "cpu/arm_dots-inl.h"
#endif

THALWEG_MATMUL_BEFORE_NAMESPACE();
namespace thalweg::cpu {
namespace HWY_NAMESPACE {
namespace {

// Rows of activations that share the loads of codes, and tiles that share those of activations: as many as the
// registers hold sums for. Processors load and multiply twice a cycle; a tile alone, with eight rows of activations,
// has nine loads for eight products, two with six rows eight for twelve.
constexpr int kQ8Tiles = kLanes == 16 ? 2 : 1;
template <int kTiles>
constexpr int kQ8Rows = kTiles == 2    ? 6
                        : kLanes == 16 ? 8
                                       : 4;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
constexpr bool kPairSums = true;  // products of bytes come as 16-bit sums of two
#else
constexpr bool kPairSums = false;
#endif

// What of a format the code of its products depends on.
template <int kGroupSize, bool kIsCentered, int kWords>
struct Products {
  static constexpr int kGroup = kGroupSize;
  // A sum starts with the center's part of it. Minimums serve centered formats too, where groups are long enough.
  static constexpr bool kStarts = kIsCentered;
  // With kPairSums: over how many words of codes products may be added in 16 bits; 0 if not even one. Else 1 for codes
  // up to 127, and 0.
  static constexpr int kSumWords = kWords;
  // The codes are made signed, which takes the center from them.
  static constexpr bool kSigned = kPairSums && kSumWords == 0;
  static constexpr bool kMinimums = !kStarts && !kSigned;
};

constexpr int sum_words(DType dtype) {
  if (!kPairSums) return largest_code(dtype) < 128 ? 1 : 0;
  const int most = 32767 / (2 * 127 * largest_code(dtype));
  for (const int words : {8, 4, 2, 1}) {
    if (words <= most && 4 * words <= group_size(dtype)) return words;
  }
  return 0;
}

template <class Block>
struct ProductsOfBlock {
  static constexpr DType kDType = std::remove_cvref_t<Block>::kDType;
  static_assert(sum_words(kDType) > 0 || !kPairSums || code_center(kDType) == 128);
  using Type = Products<group_size(kDType), group_size(kDType) == 16 && code_center(kDType) != 0, sum_words(kDType)>;
};
template <class Block>
using ProductsOf = typename ProductsOfBlock<Block>::Type;

// ---- Integers

HWY_INLINE std::int32_t load_four(const std::int8_t* x) {
  std::int32_t bytes = 0;
  std::memcpy(&bytes, x, sizeof(bytes));
  return bytes;
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
using I16 = hn::Repartition<std::int16_t, I32>;
using V16 = hn::Vec<I16>;

// Sums of two products of unsigned and signed bytes. The second takes 128 from the codes, and moves their signs to x.
#if HWY_TARGET == HWY_AVX2
HWY_INLINE V16 pair_products(VU codes, hn::Vec<I32> x) { return V16{_mm256_maddubs_epi16(codes.raw, x.raw)}; }
HWY_INLINE V16 signed_pair_products(VU codes, hn::Vec<I32> x) {
  const VU centered = hn::Xor(codes, hn::Set(kU32, 0x80808080U));
  return V16{_mm256_maddubs_epi16(_mm256_abs_epi8(centered.raw), _mm256_sign_epi8(x.raw, centered.raw))};
}
HWY_INLINE hn::Vec<I32> add_pairs(V16 sums) { return hn::Vec<I32>{_mm256_madd_epi16(sums.raw, _mm256_set1_epi16(1))}; }
#else
HWY_INLINE V16 pair_products(VU codes, hn::Vec<I32> x) { return V16{_mm_maddubs_epi16(codes.raw, x.raw)}; }
HWY_INLINE V16 signed_pair_products(VU codes, hn::Vec<I32> x) {
  const VU centered = hn::Xor(codes, hn::Set(kU32, 0x80808080U));
  return V16{_mm_maddubs_epi16(_mm_abs_epi8(centered.raw), _mm_sign_epi8(x.raw, centered.raw))};
}
HWY_INLINE hn::Vec<I32> add_pairs(V16 sums) { return hn::Vec<I32>{_mm_madd_epi16(sums.raw, _mm_set1_epi16(1))}; }
#endif
#endif

// sum + the products of each lane's four codes with four signed bytes.
template <class Products>
HWY_INLINE hn::Vec<I32> dot4(hn::Vec<I32> sum, VU codes, std::int32_t bytes) {
#if HWY_ARCH_ARM_A64
  return arm_dot4<Products::kSumWords != 0>(sum, codes, bytes);
#elif HWY_TARGET == HWY_AVX3_DL
  return hn::Vec<I32>{_mm512_dpbusd_epi32(sum.raw, codes.raw, _mm512_set1_epi32(bytes))};
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  const auto x = hn::Set(kI32, bytes);
  return hn::Add(sum, add_pairs(Products::kSigned ? signed_pair_products(codes, x) : pair_products(codes, x)));
#else
  const auto w = hn::BitCast(kI32, codes);
  const auto x = hn::Set(kI32, bytes);
  unroll<4>([&](auto byte) {
    const auto code = hn::And(hn::ShiftRight<8 * byte>(w), hn::Set(kI32, 255));
    sum = hn::Add(sum, hn::Mul(code, hn::ShiftRight<24>(hn::ShiftLeft<24 - 8 * byte>(x))));
  });
  return sum;
#endif
}

// Adds the products of a group's words with kRows rows of activations to dots[kTiles][kRows]. x[i]: the group's codes
// of row i.
template <class Products, int kTiles, int kRows>
HWY_INLINE void multiply_group(const std::uint32_t* codes, const std::int8_t* const* x, hn::Vec<I32>* dots) {
  constexpr int kWords = Products::kGroup / 4;
  static_assert(kTiles == 1 || kLanes == 16);
#if THALWEG_ARM_DOTS == 2
  if constexpr (kRows % 2 == 0) return multiply_row_pairs<kRows>(codes, kWords, x, dots);
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  if constexpr (Products::kSumWords > 1) {
    unroll<kWords / Products::kSumWords>([&](auto part) {
      V16 sums[kRows];
      unroll<Products::kSumWords>([&](auto j) {
        constexpr int kWord = part * Products::kSumWords + j;
        const VU four = hn::LoadU(kU32, codes + kWord * kLanes);
        unroll<kRows>([&](auto i) {
          const V16 pairs = pair_products(four, hn::Set(kI32, load_four(x[i] + 4 * kWord)));
          V16 sum = j == 0 ? pairs : hn::Add(sums[i], pairs);
          asm("" : "+x"(sum.raw));  // else GCC makes all products first and has no registers for them
          sums[i] = sum;
        });
      });
      unroll<kRows>([&](auto i) { dots[i] = hn::Add(dots[i], add_pairs(sums[i])); });
    });
    return;
  }
#endif
  unroll<kWords>([&](auto word) {
    VU fours[kTiles];
    unroll<kTiles>([&](auto t) { fours[t] = hn::LoadU(kU32, codes + t * kTileFloats + word * kLanes); });
    unroll<kRows>([&](auto i) {
      const std::int32_t bytes = load_four(x[i] + 4 * word);
      unroll<kTiles>([&](auto t) { dots[t * kRows + i] = dot4<Products>(dots[t * kRows + i], fours[t], bytes); });
    });
  });
}

// ---- Several rows of activations

struct Q8Row {
  const std::int8_t* codes;         // [K]
  const float* scales;              // [K/32]
  const float* sums16;              // [K/16]
  const float* sums32;              // [K/32]
  const std::int16_t* code_sums16;  // [K/16]

  Q8Row(const float* row, std::int64_t k)
      : codes(reinterpret_cast<const std::int8_t*>(row)),
        scales(row + k / 4),
        sums16(scales + k / 32),
        sums32(sums16 + k / 16),
        code_sums16(reinterpret_cast<const std::int16_t*>(sums32 + k / 32)) {}
};

// Weights k0 .. k0 + count of the rows of tiles, kTileFloats apart, which have k.
struct Q8Segment {
  Tile tile;
  std::int64_t k;
  std::int64_t k0;
  std::int64_t count;
  int center;
};

// The products of a segment of kTiles tiles with kRows rows of activations, added to sums [kRows][kTiles][kLanes].
template <class Products, int kTiles, int kRows>
HWY_INLINE void multiply_q8(const Q8Segment& segment, const float* const* activations, float* sums) {
  constexpr int kGroup = Products::kGroup;
  constexpr int kSums = kTiles * kRows;
  const std::int64_t k = segment.k;
  const std::int64_t k0 = segment.k0;
  // One pointer per row and three offsets fit the general registers; a pointer for each array of each row does not.
  const char* rows[kRows];
  VF total[kSums];  // [kTiles][kRows], as all arrays of vectors
  std::int32_t starts[kRows][kSegment / 16];
  for (int i = 0; i < kRows; ++i) {
    rows[i] = reinterpret_cast<const char*>(activations[i]);
    for (int t = 0; t < kTiles; ++t) total[t * kRows + i] = hn::LoadU(kF32, sums + (i * kTiles + t) * kLanes);
    if constexpr (Products::kStarts) {  // in formats whose blocks are a whole segment
      const std::int16_t* code_sums = Q8Row(activations[i], k).code_sums16 + k0 / 16;
      for (int g = 0; g < kSegment / 16; g += kLanes) {
        const hn::Rebind<std::int16_t, I32> d16;
        const auto sum = hn::PromoteTo(kI32, hn::LoadU(d16, code_sums + g));
        hn::StoreU(hn::Mul(sum, hn::Set(kI32, -segment.center)), kI32, starts[i] + g);
      }
    }
  }
  const Q8Row first(activations[0], k);
  const auto offset_of = [&](const void* p) { return static_cast<const char*>(p) - rows[0]; };
  std::ptrdiff_t code_at = offset_of(first.codes + k0);
  std::ptrdiff_t scale_at = offset_of(first.scales + k0 / 32);
  std::ptrdiff_t sum_at = offset_of(kGroup == 16 ? first.sums16 + k0 / 16 : first.sums32 + k0 / 32);
  const auto broadcast = [&](int i, std::ptrdiff_t at) {
    float value = 0.0F;
    std::memcpy(&value, rows[i] + at, sizeof(value));
    return hn::Set(kF32, value);
  };
  // body(index of a sum, tile, row)
  const auto for_sums = [](auto body) {
    unroll<kRows>([&](auto i) { unroll<kTiles>([&](auto t) { body(t * kRows + i, t, i); }); });
  };
  for (int g = 0; g < segment.count / kGroup; g += 32 / kGroup) {
    VF scaled[kSums];
    unroll<32 / kGroup>([&](auto half) {
      hn::Vec<I32> dots[kSums];
      const std::int8_t* x[kRows];
      unroll<kRows>([&](auto i) { x[i] = reinterpret_cast<const std::int8_t*>(rows[i] + code_at + half * kGroup); });
      for_sums([&](int sum, int, int i) {
        dots[sum] = Products::kStarts ? hn::Set(kI32, starts[i][g + half]) : hn::Zero(kI32);
      });
      multiply_group<Products, kTiles, kRows>(segment.tile.codes + (g + half) * (kGroup / 4) * kLanes, x, dots);
      VF scales[kTiles];
      unroll<kTiles>(
          [&](auto t) { scales[t] = hn::LoadU(kF32, segment.tile.scales + t * kTileFloats + (g + half) * kLanes); });
      for_sums([&](int sum, int t, int) {
        const VF dot = hn::ConvertTo(kF32, dots[sum]);
        scaled[sum] = half == 0 ? hn::Mul(dot, scales[t]) : hn::MulAdd(dot, scales[t], scaled[sum]);
      });
    });
    for_sums([&](int sum, int, int i) { total[sum] = hn::MulAdd(scaled[sum], broadcast(i, scale_at), total[sum]); });
    if constexpr (Products::kMinimums) {
      unroll<32 / kGroup>([&](auto half) {
        VF minimums[kTiles];
        unroll<kTiles>([&](auto t) {
          minimums[t] = hn::LoadU(kF32, segment.tile.minimums + t * kTileFloats + (g + half) * kLanes);
        });
        for_sums([&](int sum, int t, int i) {
          total[sum] = hn::NegMulAdd(minimums[t], broadcast(i, sum_at + half * sizeof(float)), total[sum]);
        });
      });
    }
    code_at += 32;
    scale_at += sizeof(float);
    sum_at += 32 / kGroup * sizeof(float);
  }
  for_sums([&](int sum, int t, int i) { hn::StoreU(total[sum], kF32, sums + (i * kTiles + t) * kLanes); });
}

// ---- One row of activations

// A sink of decode() that multiplies the codes at once instead of storing them.
template <class Block>
struct DotSink {
  static constexpr DTypeInfo kInfo = dtype_info(Block::kDType);
  using Kind = ProductsOf<Block>;
  static constexpr int kGroupWords = Kind::kGroup / 4;
  static constexpr int kGroups = kInfo.block_size / Kind::kGroup;
  static constexpr int kLines = (kInfo.block_bytes * kLanes + 63) / 64;

  const std::int8_t* x;  // codes of the activations
  VF scales[kGroups];
  VF minimums[kGroups];
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  // Where a group's products fit, they stay in 16 bits until its end.
  static constexpr bool kNarrowSums = Kind::kSumWords == kGroupWords;
  std::conditional_t<kNarrowSums, V16, hn::Vec<I32>> dots[kGroups];
#else
  hn::Vec<I32> dots[kGroups];
#endif

  explicit HWY_INLINE DotSink(const std::int8_t* codes) : x(codes) {
    for (auto& dot : dots) dot = hn::Zero(hn::DFromV<std::remove_reference_t<decltype(dot)>>());
  }
  // Prefetches one block of each row: more would fill the core's line fill buffers, less would leave them idle.
  static HWY_INLINE void prefetch(const std::uint8_t* next) {
    for (int line = 0; line < kLines; ++line) hwy::Prefetch(next + 64 * line);
    // A mapped file has small pages: a prefetch some pages ahead starts the address translation early.
    constexpr int kPagesAhead = 4;
    hwy::Prefetch(next + 64 * kLines + 4096 * kPagesAhead);
  }
  HWY_INLINE void put(int word, VU codes) {
    auto& dot = dots[word / kGroupWords];
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
    if constexpr (kNarrowSums) {
      dot = hn::Add(dot, pair_products(codes, hn::Set(kI32, load_four(x + 4 * word))));
      return;
    }
#endif
    if constexpr (std::is_same_v<decltype(dot), hn::Vec<I32>&>) dot = dot4<Kind>(dot, codes, load_four(x + 4 * word));
  }
  HWY_INLINE void put_group(int group, VF scale, VF minimum) {
    scales[group] = scale;
    minimums[group] = minimum;
  }

  // Group i's sum, which starts with `start`.
  HWY_INLINE VF dot(int i, std::int32_t start) const {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
    if constexpr (kNarrowSums) {
      const auto sum = add_pairs(dots[i]);
      return hn::ConvertTo(kF32, Kind::kStarts ? hn::Add(sum, hn::Set(kI32, start)) : sum);
    }
#endif
    if constexpr (Kind::kStarts) {
      return hn::ConvertTo(kF32, hn::Add(hn::BitCast(kI32, dots[i]), hn::Set(kI32, start)));
    }
    return hn::ConvertTo(kF32, hn::BitCast(kI32, dots[i]));
  }
};

// The sums of multiply_q8 for one row, with the same bits: weights k0 .. k0 + count of every row. Prefetches as many
// bytes from `ahead` on, unless that is null.
template <class Block>
HWY_NOINLINE void dot_rows(const Block* format, Rows rows, std::int64_t count, const std::uint8_t* ahead,
                           const Q8Row& activations, std::int64_t k0, float* sums) {
  using Sink = DotSink<Block>;
  using Kind = typename Sink::Kind;
  constexpr int kGroup = Kind::kGroup;
  constexpr int kCenter = code_center(Block::kDType);
  const std::int8_t* x = activations.codes + k0;
  const float* scales = activations.scales + k0 / 32;
  const float* group_sums = kGroup == 16 ? activations.sums16 + k0 / 16 : activations.sums32 + k0 / 32;
  std::int64_t group = k0 / kGroup;
  VF total = hn::LoadU(kF32, sums);
  for (std::int64_t b = 0; b < count / Sink::kInfo.block_size; ++b) {
    Sink sink(x);
    if (ahead != nullptr) {
      Sink::prefetch(ahead);
      ahead += Sink::kInfo.block_bytes * kLanes;
    }
    decode(format, rows, sink);
    unroll<Sink::kInfo.block_size / 32>([&](auto j) {
      constexpr int kHalves = 32 / kGroup;
      VF scaled = hn::Zero(kF32);
      unroll<kHalves>([&](auto half) {
        constexpr int kIndex = j * kHalves + half;
        const VF dot = sink.dot(kIndex, Kind::kStarts ? -kCenter * activations.code_sums16[group + kIndex] : 0);
        scaled = half == 0 ? hn::Mul(dot, sink.scales[kIndex]) : hn::MulAdd(dot, sink.scales[kIndex], scaled);
      });
      total = hn::MulAdd(scaled, hn::Set(kF32, scales[j]), total);
      if constexpr (Kind::kMinimums) {
        unroll<kHalves>([&](auto half) {
          constexpr int kIndex = j * kHalves + half;
          total = hn::NegMulAdd(sink.minimums[kIndex], hn::Set(kF32, group_sums[kIndex]), total);
        });
      }
    });
    rows = rows + Sink::kInfo.block_bytes;
    x += Sink::kInfo.block_size;
    scales += Sink::kInfo.block_size / 32;
    group_sums += Sink::kGroups;
    group += Sink::kGroups;
  }
  hn::StoreU(total, kF32, sums);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thalweg::cpu
HWY_AFTER_NAMESPACE();

#endif
