#include "core/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace thalweg {
namespace {

// The two formats, and a second, slow formulation of their conversions in double arithmetic.
struct Format {
  std::string name;
  int mantissa_bits;
  int min_exponent;  // of the smallest normal
  int exponent_bits;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);

  int infinity() const { return ((1 << exponent_bits) - 1) << mantissa_bits; }
  bool is_nan(int bits) const { return (bits & 0x7FFF) > infinity(); }

  double value(int bits) const {
    const int exponent = (bits & 0x7FFF) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = bits >= 0x8000 ? -1.0 : 1.0;
    if ((bits & 0x7FFF) == infinity()) return sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, min_exponent - mantissa_bits);
    return sign * std::ldexp((1 << mantissa_bits) + mantissa, min_exponent - mantissa_bits + exponent - 1);
  }

  // The nearest bits: counts ulps, ties to even. The count is valid across powers of two, because the patterns of a
  // format are consecutive.
  int nearest(float x) const {
    const int sign = std::signbit(x) ? 0x8000 : 0;
    const double magnitude = std::fabs(static_cast<double>(x));
    if (std::isinf(magnitude)) return sign | infinity();
    if (magnitude == 0.0) return sign;
    const int exponent = std::max(std::ilogb(magnitude), min_exponent);
    const double ulps = std::ldexp(magnitude, mantissa_bits - exponent);
    double whole = std::floor(ulps);
    const double rest = ulps - whole;
    if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) == 1.0)) whole += 1.0;
    const int bits = (exponent - min_exponent) * (1 << mantissa_bits) + static_cast<int>(whole);
    return sign | std::min(bits, infinity());
  }
};

class Float16Test : public testing::TestWithParam<Format> {};

TEST_P(Float16Test, WidensEveryPattern) {
  const Format& format = GetParam();
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = format.widen(static_cast<std::uint16_t>(bits));
    if (format.is_nan(bits)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), format.value(bits)) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
    }
  }
}

TEST_P(Float16Test, EveryPatternSurvivesTheRoundTrip) {
  const Format& format = GetParam();
  for (int bits = 0; bits < 0x10000; ++bits) {
    const int back = format.narrow(format.widen(static_cast<std::uint16_t>(bits)));
    if (format.is_nan(bits)) {
      ASSERT_TRUE(format.is_nan(back)) << bits;
      ASSERT_EQ(back & 0x8000, bits & 0x8000) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST_P(Float16Test, TiesGoToEvenAndTheirNeighborsToTheNearest) {
  const Format& format = GetParam();
  for (int sign : {0, 0x8000}) {
    for (int magnitude = 0; magnitude < format.infinity(); ++magnitude) {
      const int below = sign | magnitude;
      // The successor of the largest finite value would be a power of two beyond the format.
      const double above = magnitude + 1 < format.infinity() ? format.value(below + 1)
                                                             : 2.0 * format.value(below) - format.value(below - 1);
      const auto tie = static_cast<float>((format.value(below) + above) / 2.0);
      const int even = magnitude % 2 == 0 ? below : below + 1;
      ASSERT_EQ(format.narrow(tie), even) << below;
      ASSERT_EQ(format.narrow(std::nextafter(tie, 0.0F)), below) << below;
      ASSERT_EQ(format.narrow(std::nextafter(tie, std::copysign(std::numeric_limits<float>::infinity(), tie))),
                below + 1)
          << below;
    }
  }
}

TEST_P(Float16Test, NarrowsLikeTheSlowFormulation) {
  const Format& format = GetParam();
  // A prime step through all patterns of f32, NaNs left out.
  for (std::uint64_t i = 0; i < 0x100000000U; i += 1009) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(i));
    if (std::isnan(value)) continue;
    ASSERT_EQ(format.narrow(value), format.nearest(value)) << value;
  }
}

TEST_P(Float16Test, NaNStaysAQuietNaNOfItsSign) {
  const Format& format = GetParam();
  for (const std::uint32_t bits : {0x7F800001U, 0x7FC00000U, 0x7FFFFFFFU, 0x7F80FFFFU, 0x7F800FFFU}) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const int narrow = format.narrow(std::bit_cast<float>(bits | sign));
      EXPECT_TRUE(format.is_nan(narrow)) << bits;
      EXPECT_NE(narrow & (1 << (format.mantissa_bits - 1)), 0) << bits;
      EXPECT_EQ((narrow & 0x8000) != 0, sign != 0) << bits;
    }
  }
}

TEST_P(Float16Test, OverflowsToInfinity) {
  const Format& format = GetParam();
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::infinity()), format.infinity());
  EXPECT_EQ(format.narrow(-std::numeric_limits<float>::infinity()), 0x8000 | format.infinity());
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::max()), format.infinity());
  EXPECT_EQ(format.narrow(-std::numeric_limits<float>::max()), 0x8000 | format.infinity());
}

INSTANTIATE_TEST_SUITE_P(Formats, Float16Test,
                         testing::Values(Format{"f16", 10, -14, 5, f16_to_f32, f32_to_f16},
                                         Format{"bf16", 7, -126, 8, bf16_to_f32, f32_to_bf16}),
                         [](const auto& test) { return test.param.name; });

TEST(Float16, RoundsInPlace) {
  EXPECT_EQ(round_to_f16(65519.0F), 65504.0F);
  EXPECT_TRUE(std::isinf(round_to_f16(65520.0F)));
  EXPECT_EQ(round_to_f16(0x1p-25F), 0.0F);               // a tie with zero
  EXPECT_EQ(round_to_f16(0x1.8p-25F), 0x1p-24F);         // above it
  EXPECT_EQ(round_to_bf16(0x1.01p0F), 1.0F);             // a tie, down to even
  EXPECT_EQ(round_to_bf16(0x1.03p0F), 0x1.04p0F);        // a tie, up to even
  EXPECT_EQ(round_to_bf16(0x1p-133F), 0x1p-133F);        // the smallest subnormal
  EXPECT_TRUE(std::signbit(round_to_bf16(-0x1p-140F)));  // underflow keeps the sign
}

}  // namespace
}  // namespace thalweg
