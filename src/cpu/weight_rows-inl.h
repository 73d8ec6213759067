// Loads weight rows, one row per vector lane. Included once per instruction set by weight_matmul.cc.
//
// Four bytes of each row make a vector, so that packed codes, bit planes and group scales are all split by shifts and
// masks on whole vectors, and nothing is done row by row.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "thalweg/dtype.h"

#if defined(THALWEG_CPU_WEIGHT_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THALWEG_CPU_WEIGHT_ROWS_INL_H
#undef THALWEG_CPU_WEIGHT_ROWS_INL_H
#else
#define THALWEG_CPU_WEIGHT_ROWS_INL_H
#endif

#include <hwy/highway.h>

// Highway's string for this target leaves out the 8-bit dot products that it requires of the processor.
#undef THALWEG_MATMUL_BEFORE_NAMESPACE
#if HWY_TARGET == HWY_AVX3_DL
#define THALWEG_MATMUL_BEFORE_NAMESPACE() \
  HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni") static_assert(true, "for the semicolon")
#elif THALWEG_ARM_DOTS == 1  // weight_matmul_dotprod.cc
#define THALWEG_MATMUL_BEFORE_NAMESPACE() \
  HWY_PUSH_ATTRIBUTES(THALWEG_ARM_TARGET("dotprod")) static_assert(true, "for the semicolon")
#elif THALWEG_ARM_DOTS == 2  // weight_matmul_i8mm.cc
#define THALWEG_MATMUL_BEFORE_NAMESPACE() \
  HWY_PUSH_ATTRIBUTES(THALWEG_ARM_TARGET("i8mm")) static_assert(true, "for the semicolon")
#else
#define THALWEG_MATMUL_BEFORE_NAMESPACE() HWY_BEFORE_NAMESPACE()
#endif
// The compilers spell an extension differently.
#if defined(__clang__)
#define THALWEG_ARM_TARGET(extension) extension
#else
#define THALWEG_ARM_TARGET(extension) "arch=armv8.2-a+crypto+" extension
#endif

THALWEG_MATMUL_BEFORE_NAMESPACE();
namespace thalweg::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U8 = hn::Repartition<std::uint8_t, U32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;
constexpr F32 kF32;
constexpr I32 kI32;
constexpr U32 kU32;
constexpr U8 kU8;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);

// body(std::integral_constant<int, i>) for i in 0..count-1.
template <class Body, int... i>
HWY_INLINE void unroll(std::integer_sequence<int, i...>, Body body) {
  (body(std::integral_constant<int, i>()), ...);
}
template <int count, class Body>
HWY_INLINE void unroll(Body body) {
  unroll(std::make_integer_sequence<int, count>(), body);
}

// A position in kLanes weight rows: its address in the first row.
struct Rows {
  const std::uint8_t* data;
  std::ptrdiff_t stride;

  Rows operator+(std::ptrdiff_t bytes) const { return {data + bytes, stride}; }
};

// 16 bytes of each of rows first, first + 4, ..., as many as `D` holds.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, Rows rows, std::ptrdiff_t first) {
  const std::uint8_t* from = rows.data + first * rows.stride;
#if HWY_TARGET == HWY_AVX3_DL
  // Masked broadcasts from memory cost no shuffle; Combine would go through half vectors.
  const auto block = [&](int i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4 * i * rows.stride));
  };
  __m512i v = _mm512_castsi128_si512(block(0));
  v = _mm512_mask_broadcast_i32x4(v, 0x00F0, block(1));
  v = _mm512_mask_broadcast_i32x4(v, 0x0F00, block(2));
  return hn::Vec<D>{_mm512_mask_broadcast_i32x4(v, 0xF000, block(3))};
#else
  if constexpr (hn::MaxLanes(D()) == 4) {
    const hn::Repartition<std::uint8_t, D> d8;
    return hn::BitCast(d, hn::LoadU(d8, from));
  } else {
    const hn::Half<D> half;
    constexpr auto kBlocks = static_cast<std::ptrdiff_t>(hn::MaxLanes(half));
    return hn::Combine(d, load_blocks(half, rows, first + kBlocks), load_blocks(half, rows, first));
  }
#endif
}

// 16 bytes of every row as four vectors of four.
struct Quad {
  VU v0, v1, v2, v3;
};
HWY_INLINE Quad load_quad(Rows rows) {
  const hn::Repartition<std::uint64_t, U32> d64;
  const VU row0 = load_blocks(kU32, rows, 0);
  const VU row1 = load_blocks(kU32, rows, 1);
  const VU row2 = load_blocks(kU32, rows, 2);
  const VU row3 = load_blocks(kU32, rows, 3);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(kU32, row0, row1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(kU32, row2, row3));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(kU32, row0, row1));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(kU32, row2, row3));
  return {hn::BitCast(kU32, hn::InterleaveLower(d64, low01, low23)),
          hn::BitCast(kU32, hn::InterleaveUpper(d64, low01, low23)),
          hn::BitCast(kU32, hn::InterleaveLower(d64, high01, high23)),
          hn::BitCast(kU32, hn::InterleaveUpper(d64, high01, high23))};
}

// The first four of 16 readable bytes of every row.
HWY_INLINE VU load_word(Rows rows) {
  const hn::Repartition<std::uint64_t, U32> d64;
  const auto low01 = hn::InterleaveLower(kU32, load_blocks(kU32, rows, 0), load_blocks(kU32, rows, 1));
  const auto low23 = hn::InterleaveLower(kU32, load_blocks(kU32, rows, 2), load_blocks(kU32, rows, 3));
  return hn::BitCast(kU32, hn::InterleaveLower(d64, hn::BitCast(d64, low01), hn::BitCast(d64, low23)));
}

// Calls body(vector, index) for the words of 16 * kQuads bytes of every row.
template <int kQuads, class Body>
HWY_INLINE void for_each_word(Rows rows, Body body) {
  unroll<kQuads>([&](auto quad) {
    const Quad q = load_quad(rows + 16 * quad);
    body(q.v0, 4 * quad);
    body(q.v1, 4 * quad + 1);
    body(q.v2, 4 * quad + 2);
    body(q.v3, 4 * quad + 3);
  });
}

// Every byte of a lane masked.
HWY_INLINE VU mask_bytes(VU v, std::uint32_t mask) { return hn::And(v, hn::Set(kU32, mask * 0x01010101U)); }
HWY_INLINE VU low_nibbles(VU v) { return mask_bytes(v, 15); }
HWY_INLINE VU high_nibbles(VU v) { return mask_bytes(hn::ShiftRight<4>(v), 15); }
// Bits kBit, kBit + 8, ... of the lane's bytes, moved to bit kTo of each.
template <int kBit, int kTo>
HWY_INLINE VU plane(VU v, std::uint32_t mask) {
  const VU low = mask_bytes(hn::ShiftRight<kBit>(v), mask);
  return hn::ShiftLeft<kTo>(low);
}

HWY_INLINE VF to_float(VU v) { return hn::ConvertTo(kF32, hn::BitCast(kI32, v)); }
// Bits kShift.. of each lane as a number.
template <int kShift>
HWY_INLINE VF field(VU v, std::uint32_t mask) {
  return to_float(hn::And(hn::ShiftRight<kShift>(v), hn::Set(kU32, mask)));
}
// The f16 in the lower half of each lane.
HWY_INLINE VF f16_low(VU v) {
  const hn::Rebind<std::uint16_t, F32> d16;
  const hn::Rebind<hwy::float16_t, F32> half;
  return hn::PromoteTo(kF32, hn::BitCast(half, hn::TruncateTo(d16, v)));
}
HWY_INLINE VF f16_high(VU v) { return f16_low(hn::ShiftRight<16>(v)); }

// `count` weights of a plain type, a multiple of 4 (8 for 16 bits), as f32 [count][kLanes].
HWY_INLINE void load_panel(DType dtype, Rows rows, std::int64_t count, float* panel) {
  const auto put = [&](std::int64_t k, VF v) { hn::StoreU(v, kF32, panel + k * kLanes); };
  if (dtype == DType::kF32) {
    for (std::int64_t k = 0; k < count; k += 4) {
      const Quad q = load_quad(rows + 4 * k);
      put(k, hn::BitCast(kF32, q.v0));
      put(k + 1, hn::BitCast(kF32, q.v1));
      put(k + 2, hn::BitCast(kF32, q.v2));
      put(k + 3, hn::BitCast(kF32, q.v3));
    }
    return;
  }
  const bool bf16 = dtype == DType::kBF16;
  for (std::int64_t k = 0; k < count; k += 8) {
    const Quad q = load_quad(rows + 2 * k);
    const auto put_two = [&](std::int64_t i, VU v) {
      if (bf16) {
        put(i, hn::BitCast(kF32, hn::ShiftLeft<16>(v)));
        put(i + 1, hn::BitCast(kF32, hn::And(v, hn::Set(kU32, 0xFFFF0000U))));
      } else {
        put(i, f16_low(v));
        put(i + 1, f16_high(v));
      }
    };
    put_two(k, q.v0);
    put_two(k + 2, q.v1);
    put_two(k + 4, q.v2);
    put_two(k + 6, q.v3);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thalweg::cpu
HWY_AFTER_NAMESPACE();

#endif
