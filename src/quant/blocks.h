#pragma once

// The block formats of GGUF as stored in files, little-endian. All fields consist of bytes, so that a block may start
// at any address. Comments w = ... give the index of a weight in its block; nibble 0 of a byte is the low one.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/float16.h"
#include "thalweg/dtype.h"

namespace thalweg {

static_assert(std::endian::native == std::endian::little, "blocks are read as they lie in a file");

// A little-endian 16-bit word at any address: an f16, unless a field says otherwise.
struct Word16 {
  std::array<std::uint8_t, 2> bytes;

  std::uint16_t bits() const {
    std::uint16_t result = 0;
    std::memcpy(&result, bytes.data(), sizeof(result));
    return result;
  }
  float f32() const { return f16_to_f32(bits()); }

  static Word16 of(std::uint16_t bits) {
    return {{static_cast<std::uint8_t>(bits & 0xFFU), static_cast<std::uint8_t>(bits >> 8)}};
  }
};

// NOLINTBEGIN(readability-identifier-naming): the formats' own names.

// ---------------------------------------------------------------------------------------------------------------------
// Blocks of 32 weights. A byte of `codes` holds the code of weight i in its low nibble and of weight i + 16 in its high
// one.

// weight = scale (code - 8)
struct BlockQ4_0 {
  static constexpr DType kDType = DType::kQ4_0;
  Word16 scale;
  std::array<std::uint8_t, 16> codes;
};

// weight = scale code + minimum
struct BlockQ4_1 {
  static constexpr DType kDType = DType::kQ4_1;
  Word16 scale;
  Word16 minimum;
  std::array<std::uint8_t, 16> codes;
};

// weight = scale (code - 16)
struct BlockQ5_0 {
  static constexpr DType kDType = DType::kQ5_0;
  Word16 scale;
  std::array<std::uint8_t, 4> high;    // bit w: the fifth bit of code w
  std::array<std::uint8_t, 16> codes;  // the lower four
};

// weight = scale code + minimum
struct BlockQ5_1 {
  static constexpr DType kDType = DType::kQ5_1;
  Word16 scale;
  Word16 minimum;
  std::array<std::uint8_t, 4> high;    // as in Q5_0
  std::array<std::uint8_t, 16> codes;  // the lower four bits
};

// weight = scale code
struct BlockQ8_0 {
  static constexpr DType kDType = DType::kQ8_0;
  Word16 scale;
  std::array<std::int8_t, 32> codes;
};

// weight = scale kIq4Levels[code]
struct BlockIQ4_NL {
  static constexpr DType kDType = DType::kIQ4_NL;
  Word16 scale;
  std::array<std::uint8_t, 16> codes;
};

// weight = 2^(exponent - 128) kMxfp4Levels[code]
struct BlockMXFP4 {
  static constexpr DType kDType = DType::kMXFP4;
  std::uint8_t exponent;  // E8M0; the levels are doubled, hence 128 for the bias of 127
  std::array<std::uint8_t, 16> codes;
};

// ---------------------------------------------------------------------------------------------------------------------
// Super-blocks of 256 weights: groups of 16 or 32 with integer scales (and minimums), multiples of the block's f16s.

// 16 groups of 16; weight = scale group_scale code - minimum group_minimum
struct BlockQ2_K {
  static constexpr DType kDType = DType::kQ2_K;
  std::array<std::uint8_t, 16> groups;  // low nibble: the group's scale, high nibble: its minimum
  std::array<std::uint8_t, 64> codes;   // w = 128 h + 32 j + l: bits 2j, 2j + 1 of byte 32 h + l
  Word16 scale;
  Word16 minimum;
};

// 16 groups of 16; weight = scale (group_scale - 32) (code - 4)
struct BlockQ3_K {
  static constexpr DType kDType = DType::kQ3_K;
  std::array<std::uint8_t, 32> high;    // w = 32 j + l: bit j of byte l is the third bit of code w
  std::array<std::uint8_t, 64> codes;   // the lower two, as in Q2_K
  std::array<std::uint8_t, 12> groups;  // 6 bits each, see q3_group_scale()
  Word16 scale;
};

// 8 groups of 32; weight = scale group_scale code - minimum group_minimum
struct BlockQ4_K {
  static constexpr DType kDType = DType::kQ4_K;
  Word16 scale;
  Word16 minimum;
  std::array<std::uint8_t, 12> groups;  // 6 + 6 bits each, see q45_group()
  std::array<std::uint8_t, 128> codes;  // w = 64 p + 32 s + l: nibble s of byte 32 p + l
};

// 8 groups of 32; weight = scale group_scale code - minimum group_minimum
struct BlockQ5_K {
  static constexpr DType kDType = DType::kQ5_K;
  Word16 scale;
  Word16 minimum;
  std::array<std::uint8_t, 12> groups;  // as in Q4_K
  std::array<std::uint8_t, 32> high;    // w = 32 j + l: bit j of byte l is the fifth bit of code w
  std::array<std::uint8_t, 128> codes;  // the lower four, as in Q4_K
};

// 16 groups of 16; weight = scale group_scale (code - 32)
struct BlockQ6_K {
  static constexpr DType kDType = DType::kQ6_K;
  std::array<std::uint8_t, 128> codes;  // w = 128 h + 64 s + l, l < 64: nibble s of byte 64 h + l, the lower four bits
  std::array<std::uint8_t, 64> high;    // w = 128 h + 32 j + l: bits 2j, 2j + 1 of byte 32 h + l, the upper two
  std::array<std::int8_t, 16> groups;
  Word16 scale;
};

// 8 groups of 32; weight = scale (group_scale - 32) kIq4Levels[code]
struct BlockIQ4_XS {
  static constexpr DType kDType = DType::kIQ4_XS;
  Word16 scale;
  Word16 groups_high;                      // bits 2g, 2g + 1: the upper two of group g's scale; not an f16
  std::array<std::uint8_t, 4> groups_low;  // nibble g % 2 of byte g / 2: the lower four
  std::array<std::uint8_t, 128> codes;     // group g in bytes 16 g .. 16 g + 15, laid out as in IQ4_NL
};

// NOLINTEND(readability-identifier-naming)

// The sixteen levels of the IQ4 formats, denser near zero.
inline constexpr std::array<std::int8_t, 16> kIq4Levels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                           1,    13,   25,  38,  53,  69,  89,  113};

// E2M1 floats, doubled to make them integers.
inline constexpr std::array<std::int8_t, 16> kMxfp4Levels = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// ---------------------------------------------------------------------------------------------------------------------
// Packed group scales.

// Q3_K: group g's lower four bits are nibble g / 8 of byte g % 8, its upper two bits 2 (g / 4) and up of byte 8 + g
// % 4. 0..63, 32 stands for zero.
inline int q3_group_scale(const std::array<std::uint8_t, 12>& groups, int g) {
  const int low = groups[static_cast<std::size_t>(g % 8)] >> (4 * (g / 8)) & 15;
  const int high = groups[static_cast<std::size_t>(8 + g % 4)] >> (2 * (g / 4)) & 3;
  return low | high << 4;
}
inline void set_q3_group_scale(std::array<std::uint8_t, 12>& groups, int g, int scale) {  // bits must be clear
  groups[static_cast<std::size_t>(g % 8)] |= static_cast<std::uint8_t>((scale & 15) << (4 * (g / 8)));
  groups[static_cast<std::size_t>(8 + g % 4)] |= static_cast<std::uint8_t>((scale >> 4) << (2 * (g / 4)));
}

// Q4_K and Q5_K: scales of groups 0..3 in the low six bits of bytes 0..3, minimums of the same in bytes 4..7; groups
// 4..7 have their lower four bits in bytes 8..11 (scale in the low nibble) and the upper two on top of bytes g - 4 and
// g.
struct GroupScale {
  int scale;    // 0..63
  int minimum;  // 0..63
};
inline GroupScale q45_group(const std::array<std::uint8_t, 12>& groups, int g) {
  const auto byte = [&](int i) { return static_cast<int>(groups[static_cast<std::size_t>(i)]); };
  if (g < 4) return {byte(g) & 63, byte(g + 4) & 63};
  return {(byte(g + 4) & 15) | byte(g - 4) >> 6 << 4, byte(g + 4) >> 4 | byte(g) >> 6 << 4};
}
inline void set_q45_group(std::array<std::uint8_t, 12>& groups, int g, GroupScale group) {  // bits must be clear
  const auto set = [&](int i, int bits) { groups[static_cast<std::size_t>(i)] |= static_cast<std::uint8_t>(bits); };
  if (g < 4) {
    set(g, group.scale);
    set(g + 4, group.minimum);
  } else {
    set(g + 4, (group.scale & 15) | (group.minimum & 15) << 4);
    set(g - 4, group.scale >> 4 << 6);
    set(g, group.minimum >> 4 << 6);
  }
}

inline int iq4_xs_group_scale(const BlockIQ4_XS& block, int g) {  // 0..63, 32 stands for zero
  const int low = block.groups_low[static_cast<std::size_t>(g / 2)] >> (4 * (g % 2)) & 15;
  return low | (block.groups_high.bits() >> (2 * g) & 3) << 4;
}

namespace detail {
template <class... Block>
constexpr bool kLayoutsMatch =
    ((sizeof(Block) == static_cast<std::size_t>(dtype_info(Block::kDType).block_bytes) && alignof(Block) == 1) && ...);
}
static_assert(detail::kLayoutsMatch<BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, BlockIQ4_NL, BlockMXFP4,
                                    BlockQ2_K, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K, BlockIQ4_XS>);

// Calls body.template operator()<Block>() with the block type of a format; does nothing for plain types.
template <class Body>
void with_block_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI32:
      return;
    case DType::kQ4_0:
      return body.template operator()<BlockQ4_0>();
    case DType::kQ4_1:
      return body.template operator()<BlockQ4_1>();
    case DType::kQ5_0:
      return body.template operator()<BlockQ5_0>();
    case DType::kQ5_1:
      return body.template operator()<BlockQ5_1>();
    case DType::kQ8_0:
      return body.template operator()<BlockQ8_0>();
    case DType::kQ2_K:
      return body.template operator()<BlockQ2_K>();
    case DType::kQ3_K:
      return body.template operator()<BlockQ3_K>();
    case DType::kQ4_K:
      return body.template operator()<BlockQ4_K>();
    case DType::kQ5_K:
      return body.template operator()<BlockQ5_K>();
    case DType::kQ6_K:
      return body.template operator()<BlockQ6_K>();
    case DType::kIQ4_NL:
      return body.template operator()<BlockIQ4_NL>();
    case DType::kIQ4_XS:
      return body.template operator()<BlockIQ4_XS>();
    case DType::kMXFP4:
      return body.template operator()<BlockMXFP4>();
  }
}

}  // namespace thalweg
