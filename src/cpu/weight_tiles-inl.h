// Decodes the block formats: 256 weights of every row of a tile to unsigned codes, a scale and a minimum per group.
// Included once per instruction set by weight_matmul.cc.

#include <array>
#include <cstddef>

#include "quant/blocks.h"
#include "thalweg/dtype.h"

#if defined(THALWEG_CPU_WEIGHT_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THALWEG_CPU_WEIGHT_TILES_INL_H
#undef THALWEG_CPU_WEIGHT_TILES_INL_H
#else
#define THALWEG_CPU_WEIGHT_TILES_INL_H
#endif

#include "cpu/weight_rows-inl.h"

THALWEG_MATMUL_BEFORE_NAMESPACE();
namespace thalweg::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr int kSegment = 256;  // weights along K that are decoded at a time

// The memory of a tile, and the distance between the arrays of two.
constexpr std::int64_t kCodeFloats = kSegment / 4 * kLanes;
constexpr std::int64_t kGroupFloats = kSegment / 16 * kLanes;
constexpr std::int64_t kTileFloats = kCodeFloats + 2 * kGroupFloats;

// A decoded segment, [.][kLanes] each. decode() takes any sink with its two functions.
struct Tile {
  std::uint32_t* codes;  // four codes along K per lane
  float* scales;         // per group of the format
  float* minimums;

  static Tile at(float* memory) {
    return {reinterpret_cast<std::uint32_t*>(memory), memory + kCodeFloats, memory + kCodeFloats + kGroupFloats};
  }
  HWY_INLINE void put(int word, VU four) const { hn::StoreU(four, kU32, codes + word * kLanes); }
  HWY_INLINE void put_group(int group, VF scale, VF minimum) const {
    hn::StoreU(scale, kF32, scales + group * kLanes);
    hn::StoreU(minimum, kF32, minimums + group * kLanes);
  }
};

// Weights per scale.
constexpr int group_size(DType dtype) {
  return dtype == DType::kQ2_K || dtype == DType::kQ3_K || dtype == DType::kQ6_K ? 16 : 32;
}
// The code of weight 0 in the formats whose minimum is scale times that; 0 in those that store minimums.
constexpr int code_center(DType dtype) {
  switch (dtype) {
    case DType::kQ3_K:
      return 4;
    case DType::kQ4_0:
      return 8;
    case DType::kMXFP4:
      return 12;
    case DType::kQ5_0:
      return 16;
    case DType::kQ6_K:
      return 32;
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return 128;
    default:
      return 0;
  }
}
constexpr int largest_code(DType dtype) {
  switch (dtype) {
    case DType::kQ2_K:
      return 3;
    case DType::kQ3_K:
      return 7;
    case DType::kMXFP4:
      return 24;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
      return 31;
    case DType::kQ6_K:
      return 63;
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return 255;
    default:
      return 15;
  }
}

// weight = scale (code - center); the product is exact, the centers are powers of two (or the scale is).
template <class Sink>
HWY_INLINE void put_symmetric(Sink& sink, int group, VF scale, DType dtype) {
  sink.put_group(group, scale, hn::Mul(scale, hn::Set(kF32, static_cast<float>(code_center(dtype)))));
}

// Levels of a table plus kRaise, which makes them unsigned.
template <int kRaise>
HWY_INLINE VU look_up(const std::array<std::int8_t, 16>& levels, VU nibbles) {
  const hn::Repartition<std::int8_t, U32> d8;
  const auto found = hn::TableLookupBytes(hn::LoadDup128(d8, levels.data()), hn::BitCast(d8, nibbles));
  return hn::BitCast(kU32, hn::Add(found, hn::Set(d8, static_cast<std::int8_t>(kRaise))));
}

// ---- Blocks of 32

template <class Sink>
HWY_INLINE void decode(const BlockQ4_0*, Rows rows, Sink& sink) {
  put_symmetric(sink, 0, f16_low(load_word(rows)), DType::kQ4_0);
  for_each_word<1>(rows + offsetof(BlockQ4_0, codes), [&](VU v, int word) {
    sink.put(word, low_nibbles(v));
    sink.put(word + 4, high_nibbles(v));
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockQ4_1*, Rows rows, Sink& sink) {
  const VU header = load_word(rows);
  sink.put_group(0, f16_low(header), hn::Neg(f16_high(header)));
  for_each_word<1>(rows + offsetof(BlockQ4_1, codes), [&](VU v, int word) {
    sink.put(word, low_nibbles(v));
    sink.put(word + 4, high_nibbles(v));
  });
}

// Bits 4 word .. 4 word + 3 of `high`, one per byte, as the fifth bits.
HWY_INLINE VU fifth_bits(VU high, int word) {
  const VU four = hn::And(hn::ShiftRightSame(high, 4 * word), hn::Set(kU32, 15));
  const VU spread =
      hn::Or(hn::Or(four, hn::ShiftLeft<7>(four)), hn::Or(hn::ShiftLeft<14>(four), hn::ShiftLeft<21>(four)));
  return hn::ShiftLeft<4>(mask_bytes(spread, 1));
}

template <class Sink>
HWY_INLINE void decode_five_bits(Rows codes, VU high, Sink& sink) {
  for_each_word<1>(codes, [&](VU v, int word) {
    sink.put(word, hn::Or(low_nibbles(v), fifth_bits(high, word)));
    sink.put(word + 4, hn::Or(high_nibbles(v), fifth_bits(high, word + 4)));
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockQ5_0*, Rows rows, Sink& sink) {
  put_symmetric(sink, 0, f16_low(load_word(rows)), DType::kQ5_0);
  const VU high = load_word(rows + offsetof(BlockQ5_0, high));
  decode_five_bits(rows + offsetof(BlockQ5_0, codes), high, sink);
}

template <class Sink>
HWY_INLINE void decode(const BlockQ5_1*, Rows rows, Sink& sink) {
  const Quad header = load_quad(rows);
  sink.put_group(0, f16_low(header.v0), hn::Neg(f16_high(header.v0)));
  decode_five_bits(rows + offsetof(BlockQ5_1, codes), header.v1, sink);
}

template <class Sink>
HWY_INLINE void decode(const BlockQ8_0*, Rows rows, Sink& sink) {
  put_symmetric(sink, 0, f16_low(load_word(rows)), DType::kQ8_0);
  for_each_word<2>(rows + offsetof(BlockQ8_0, codes),
                   [&](VU v, int word) { sink.put(word, hn::Xor(v, hn::Set(kU32, 0x80808080U))); });
}

template <class Sink>
HWY_INLINE void decode(const BlockIQ4_NL*, Rows rows, Sink& sink) {
  put_symmetric(sink, 0, f16_low(load_word(rows)), DType::kIQ4_NL);
  for_each_word<1>(rows + offsetof(BlockIQ4_NL, codes), [&](VU v, int word) {
    sink.put(word, look_up<-128>(kIq4Levels, low_nibbles(v)));
    sink.put(word + 4, look_up<-128>(kIq4Levels, high_nibbles(v)));
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockMXFP4*, Rows rows, Sink& sink) {
  // 2^(exponent - 128), subnormal below exponent 2.
  const VU exponent = hn::And(load_word(rows), hn::Set(kU32, 255));
  const VU normal = hn::ShiftLeft<23>(hn::Sub(exponent, hn::Set(kU32, 1)));
  const VU tiny = hn::Add(hn::Set(kU32, 0x200000), hn::ShiftLeft<21>(exponent));
  const auto is_tiny = hn::RebindMask(kU32, hn::Lt(hn::BitCast(kI32, exponent), hn::Set(kI32, 2)));
  put_symmetric(sink, 0, hn::BitCast(kF32, hn::IfThenElse(is_tiny, tiny, normal)), DType::kMXFP4);
  for_each_word<1>(rows + offsetof(BlockMXFP4, codes), [&](VU v, int word) {
    sink.put(word, look_up<12>(kMxfp4Levels, low_nibbles(v)));
    sink.put(word + 4, look_up<12>(kMxfp4Levels, high_nibbles(v)));
  });
}

// ---- Super-blocks of 256
//
// Bytes are loaded in ascending order where that is possible: a stream that jumps back and forth is not prefetched by
// the processor.

// The eight scales and minimums of Q4_K and Q5_K: header words scale | minimum, and the twelve bytes of groups.
template <class Sink>
HWY_INLINE void decode_groups_45(Rows rows, Sink& sink) {
  const Quad header = load_quad(rows);
  const VF scale = f16_low(header.v0);
  const VF minimum = f16_high(header.v0);
  // Groups 4..7: four bits from the last word, two from the top of the first two.
  const VU high_scales = hn::Or(low_nibbles(header.v3), plane<6, 4>(header.v1, 3));
  const VU high_minimums = hn::Or(high_nibbles(header.v3), plane<6, 4>(header.v2, 3));
  unroll<4>([&](auto g) {
    sink.put_group(g, hn::Mul(scale, field<8 * g>(header.v1, 63)), hn::Mul(minimum, field<8 * g>(header.v2, 63)));
    sink.put_group(g + 4, hn::Mul(scale, field<8 * g>(high_scales, 63)),
                   hn::Mul(minimum, field<8 * g>(high_minimums, 63)));
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockQ4_K*, Rows rows, Sink& sink) {
  static_assert(offsetof(BlockQ4_K, groups) == 4);
  decode_groups_45(rows, sink);
  for_each_word<8>(rows + offsetof(BlockQ4_K, codes), [&](VU v, int word) {
    const int to = word / 8 * 16 + word % 8;
    sink.put(to, low_nibbles(v));
    sink.put(to + 8, high_nibbles(v));
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockQ5_K*, Rows rows, Sink& sink) {
  static_assert(offsetof(BlockQ5_K, groups) == 4);
  decode_groups_45(rows, sink);
  unroll<2>([&](auto half) {
    const Quad high = load_quad(rows + offsetof(BlockQ5_K, high) + 16 * half);
    unroll<4>([&](auto pair) {
      const Quad low = load_quad(rows + offsetof(BlockQ5_K, codes) + 32 * pair + 16 * half);
      const auto put = [&](VU codes, VU bits, int word) {
        const int to = 16 * pair + 4 * half + word;
        sink.put(to, hn::Or(low_nibbles(codes), plane<2 * pair, 4>(bits, 1)));
        sink.put(to + 8, hn::Or(high_nibbles(codes), plane<2 * pair + 1, 4>(bits, 1)));
      };
      put(low.v0, high.v0, 0);
      put(low.v1, high.v1, 1);
      put(low.v2, high.v2, 2);
      put(low.v3, high.v3, 3);
    });
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockQ6_K*, Rows rows, Sink& sink) {
  static_assert(offsetof(BlockQ6_K, scale) == 208);
  // w = 128 h + 64 s + l: both nibbles s of a code byte have their upper bits in the same byte l % 32.
  unroll<4>([&](auto part) {  // h and the halves of 32 bytes
    const int h = part / 2;
    const int at = 16 * (part % 2);
    const Rows first = rows + offsetof(BlockQ6_K, codes) + 64 * h + at;
    const std::array<Quad, 2> lows = {load_quad(first), load_quad(first + 32)};  // bytes l < 32 and the others
    const Quad high = load_quad(rows + offsetof(BlockQ6_K, high) + 32 * h + at);
    unroll<2>([&](auto j) {
      const Quad& low = lows[j];
      const auto put = [&](VU codes, VU bits, int word) {
        const int to = (128 * h + 32 * j + at) / 4 + word;
        sink.put(to, hn::Or(low_nibbles(codes), plane<2 * j, 4>(bits, 3)));
        sink.put(to + 16, hn::Or(high_nibbles(codes), plane<2 * j + 4, 4>(bits, 3)));
      };
      put(low.v0, high.v0, 0);
      put(low.v1, high.v1, 1);
      put(low.v2, high.v2, 2);
      put(low.v3, high.v3, 3);
    });
  });
  const VF scale = f16_high(load_quad(rows + 194).v3);
  int group = 0;
  for_each_word<1>(rows + offsetof(BlockQ6_K, groups), [&](VU v, int) {
    unroll<4>([&](auto g) {
      // An arithmetic shift of the byte moved to the top keeps its sign.
      const auto top = hn::BitCast(kI32, hn::ShiftLeft<24 - 8 * g>(v));
      put_symmetric(sink, group++, hn::Mul(scale, hn::ConvertTo(kF32, hn::ShiftRight<24>(top))), DType::kQ6_K);
    });
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockQ2_K*, Rows rows, Sink& sink) {
  static_assert(offsetof(BlockQ2_K, scale) == 80 && offsetof(BlockQ2_K, minimum) == 82);
  const VU header = load_quad(rows + 68).v3;
  const VF scale = f16_low(header);
  const VF minimum = f16_high(header);
  int group = 0;
  for_each_word<1>(rows + offsetof(BlockQ2_K, groups), [&](VU v, int) {
    unroll<4>([&](auto g) {
      sink.put_group(group++, hn::Mul(scale, field<8 * g>(v, 15)), hn::Mul(minimum, field<8 * g + 4>(v, 15)));
    });
  });
  for_each_word<4>(rows + offsetof(BlockQ2_K, codes), [&](VU v, int word) {
    const int to = word / 8 * 32 + word % 8;
    unroll<4>([&](auto j) { sink.put(to + 8 * j, plane<2 * j, 0>(v, 3)); });
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockQ3_K*, Rows rows, Sink& sink) {
  static_assert(offsetof(BlockQ3_K, groups) == 96 && offsetof(BlockQ3_K, scale) == 108);
  unroll<4>([&](auto part) {
    const int h = part / 2;
    const int at = 16 * (part % 2);
    const Quad planes = load_quad(rows + offsetof(BlockQ3_K, high) + at);
    const Quad low = load_quad(rows + offsetof(BlockQ3_K, codes) + 32 * h + at);
    const auto put = [&](VU codes, VU bits, int word) {
      // The planes of the upper 128 weights are the upper nibble of each byte.
      const VU four = h == 0 ? low_nibbles(bits) : high_nibbles(bits);
      unroll<4>([&](auto j) {
        const int to = (128 * h + 32 * j + at) / 4 + word;
        sink.put(to, hn::Or(plane<2 * j, 0>(codes, 3), plane<j, 2>(four, 1)));
      });
    };
    put(low.v0, planes.v0, 0);
    put(low.v1, planes.v1, 1);
    put(low.v2, planes.v2, 2);
    put(low.v3, planes.v3, 3);
  });
  const VF scale = f16_high(load_quad(rows + 94).v3);
  const Quad header = load_quad(rows + 92);  // groups in the last three words
  // Group g: nibble g / 8 of byte g % 8, and two bits of byte 8 + g % 4.
  unroll<4>([&](auto quarter) {
    const VU halves = quarter % 2 == 0 ? header.v1 : header.v2;
    const VU low = quarter < 2 ? low_nibbles(halves) : high_nibbles(halves);
    const VU packed = hn::Or(low, plane<2 * quarter, 4>(header.v3, 3));
    unroll<4>([&](auto g) {
      const VF group_scale = hn::Sub(field<8 * g>(packed, 63), hn::Set(kF32, 32.0F));
      put_symmetric(sink, 4 * quarter + g, hn::Mul(scale, group_scale), DType::kQ3_K);
    });
  });
}

template <class Sink>
HWY_INLINE void decode(const BlockIQ4_XS*, Rows rows, Sink& sink) {
  static_assert(offsetof(BlockIQ4_XS, groups_high) == 2 && offsetof(BlockIQ4_XS, groups_low) == 4);
  const Quad header = load_quad(rows);
  const VF scale = f16_low(header.v0);
  unroll<8>([&](auto g) {
    const VU low = hn::And(hn::ShiftRight<4 * g>(header.v1), hn::Set(kU32, 15));
    const VU high = hn::And(hn::ShiftRight<16 + 2 * g>(header.v0), hn::Set(kU32, 3));
    const VF group_scale = hn::Sub(to_float(hn::Or(low, hn::ShiftLeft<4>(high))), hn::Set(kF32, 32.0F));
    put_symmetric(sink, g, hn::Mul(scale, group_scale), DType::kIQ4_XS);
  });
  for_each_word<8>(rows + offsetof(BlockIQ4_XS, codes), [&](VU v, int word) {
    const int to = word / 4 * 8 + word % 4;
    sink.put(to, look_up<-128>(kIq4Levels, low_nibbles(v)));
    sink.put(to + 4, look_up<-128>(kIq4Levels, high_nibbles(v)));
  });
}

// Calls body(a null pointer to the format's block type); block formats only. Not quant/blocks.h's with_block_type:
// these calls must stay within functions of the instruction set.
template <class Body>
HWY_INLINE void with_format(DType dtype, Body body) {
  switch (dtype) {
    case DType::kQ4_0:
      return body(static_cast<const BlockQ4_0*>(nullptr));
    case DType::kQ4_1:
      return body(static_cast<const BlockQ4_1*>(nullptr));
    case DType::kQ5_0:
      return body(static_cast<const BlockQ5_0*>(nullptr));
    case DType::kQ5_1:
      return body(static_cast<const BlockQ5_1*>(nullptr));
    case DType::kQ8_0:
      return body(static_cast<const BlockQ8_0*>(nullptr));
    case DType::kQ2_K:
      return body(static_cast<const BlockQ2_K*>(nullptr));
    case DType::kQ3_K:
      return body(static_cast<const BlockQ3_K*>(nullptr));
    case DType::kQ4_K:
      return body(static_cast<const BlockQ4_K*>(nullptr));
    case DType::kQ5_K:
      return body(static_cast<const BlockQ5_K*>(nullptr));
    case DType::kQ6_K:
      return body(static_cast<const BlockQ6_K*>(nullptr));
    case DType::kIQ4_NL:
      return body(static_cast<const BlockIQ4_NL*>(nullptr));
    case DType::kIQ4_XS:
      return body(static_cast<const BlockIQ4_XS*>(nullptr));
    case DType::kMXFP4:
      return body(static_cast<const BlockMXFP4*>(nullptr));
    default:
      return;
  }
}

// `count` weights of every row, a multiple of the block size and at most kSegment.
template <class Block>
HWY_NOINLINE void decode_segment(const Block* format, Rows rows, std::int64_t count, Tile tile) {
  constexpr DTypeInfo kInfo = dtype_info(Block::kDType);
  for (int b = 0; b < count / kInfo.block_size; ++b) {
    const Tile out{tile.codes + b * (kInfo.block_size / 4) * kLanes, tile.scales + b * kLanes,
                   tile.minimums + b * kLanes};
    decode(format, rows + b * kInfo.block_bytes, out);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thalweg::cpu
HWY_AFTER_NAMESPACE();

#endif
