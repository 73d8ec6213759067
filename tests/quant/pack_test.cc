#include "quant/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <sstream>

#include "cases/random.h"
#include "core/float16.h"
#include "cpu/vector.h"
#include "quant/goldens.h"
#include "quant/unpack.h"
#include "thalweg/quant.h"

namespace thalweg {
namespace {

using cases::Random;

// Packable types of which `wanted` is true.
std::vector<DType> packable_types(bool (*wanted)(DType) = [](DType) { return true; }) {
  std::vector<DType> list;
  for (const DType dtype : weight_types()) {
    if (can_pack(dtype) && wanted(dtype)) list.push_back(dtype);
  }
  return list;
}

std::vector<char> packed(DType dtype, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<char> blocks(static_cast<std::size_t>(bytes_of(dtype, count)), '\x5A');
  pack(dtype, values.data(), count, blocks.data());
  return blocks;
}

std::vector<float> unpacked(DType dtype, const std::vector<char>& blocks, std::size_t count) {
  std::vector<float> values(count);
  unpack(dtype, blocks.data(), static_cast<std::int64_t>(count), values.data());
  return values;
}

double rmse(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    squares += difference * difference;
  }
  return std::sqrt(squares / static_cast<double>(a.size()));
}

double packing_error(DType dtype, const std::vector<float>& values) {
  return rmse(values, unpacked(dtype, packed(dtype, values), values.size()));
}

// The distributions of tools/make_quant_goldens.py, in its order: the seed is the index in the list, from 1.
std::vector<float> draw(const std::string& distribution, std::size_t count) {
  static const std::vector<std::string> kNames = {"normal",   "laplace", "uniform", "outliers", "shifted",
                                                  "positive", "groups",  "sparse",  "constant", "zeros",
                                                  "tiny",     "small",   "large"};
  std::uint64_t seed = 1;
  while (kNames.at(seed - 1) != distribution) ++seed;
  Random random(seed);
  std::vector<float> values(count);
  double scale = 1.0;
  for (std::size_t i = 0; i < count; ++i) {
    const double x = random.normal();
    const double u = random.uniform();
    if (i % 16 == 0) scale = std::exp(x);
    const std::map<std::string, double> choices = {
        {"normal", 0.02 * x},   {"laplace", (x < 0.0 ? 0.02 : -0.02) * std::log(1.0 - u)},
        {"uniform", 2 * u - 1}, {"outliers", u < 0.01 ? 20.0 * x : x},
        {"shifted", x - 3.0},   {"positive", std::abs(x)},
        {"groups", scale * x},  {"sparse", u < 0.1 ? x : 0.0},
        {"constant", -0.7},     {"zeros", 0.0},
        {"tiny", 1e-30 * x},    {"small", 1e-4 * x},
        {"large", 1e4 * x},
    };
    values[i] = static_cast<float>(choices.at(distribution));
  }
  return values;
}

class PackTest : public testing::TestWithParam<DType> {};
class LossyPackTest : public PackTest {};
class BlockPackTest : public PackTest {};

// At most 1 % worse than the package gguf, at most 3 % worse than ggml's own quantizer where that package has none.
TEST_P(LossyPackTest, IsAsGoodAsTheReferencePackers) {
  const std::vector<char> bytes = read_golden("pack_rmse.txt");
  std::istringstream lines(std::string(bytes.begin(), bytes.end()));
  std::string line;
  int compared = 0;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string format;
    std::string distribution;
    double reference = 0.0;
    std::string packer;
    fields >> format;
    if (format != dtype_name(GetParam())) continue;
    fields >> distribution >> reference >> packer;
    ASSERT_TRUE(fields) << line;
    const double allowed = packer == "gguf" ? 1.01 : 1.03;
    const double error = packing_error(GetParam(), draw(distribution, 4096));
    EXPECT_LE(error, allowed * reference) << distribution << ", " << packer << ": " << reference;
    // For docs/formats.md; --gtest_output=json:FILE writes it down.
    if (reference > 0.0) RecordProperty(distribution, std::to_string(error / reference));
    ++compared;
  }
  EXPECT_EQ(compared, 13);
}

// A sanity check of the bound above that needs no other packer. A format of b bits leaves an error
// of about 2^-b of a range of some five standard deviations.
TEST_P(PackTest, LosesWhatItsBitsAllow) {
  const DTypeInfo info = dtype_info(GetParam());
  const std::vector<float> values = draw("positive", 4096);
  const double size = rmse(values, std::vector<float>(values.size(), 0.0F));
  const double bits = std::min(8.0 * info.block_bytes / info.block_size, 9.0);
  EXPECT_LT(packing_error(GetParam(), values) / size, 2.5 * std::exp2(-bits));
}

TEST_P(PackTest, RepeatsItselfToTheBit) {
  const std::vector<float> values = draw("groups", 2048);
  const std::vector<char> whole = packed(GetParam(), values);
  EXPECT_EQ(packed(GetParam(), values), whole);
  // Blocks do not depend on their neighbors.
  const std::vector<float> tail(values.begin() + 1024, values.end());
  const std::vector<char> tail_blocks = packed(GetParam(), tail);
  EXPECT_TRUE(std::equal(tail_blocks.begin(), tail_blocks.end(),
                         whole.end() - static_cast<std::ptrdiff_t>(tail_blocks.size())));
}

TEST_P(PackTest, GivesTheSameBlocksOnEveryInstructionSet) {
  for (const char* kind : {"groups", "outliers", "positive"}) {
    const std::vector<float> values = draw(kind, 4096);
    const std::vector<char> best = packed(GetParam(), values);
    for (const std::string& set : cpu::instruction_sets()) {
      ASSERT_TRUE(cpu::select_instruction_set(set));
      EXPECT_TRUE(packed(GetParam(), values) == best) << set << ", " << kind;
    }
    cpu::select_instruction_set("");
  }
}

TEST_P(PackTest, KeepsZeros) {
  const std::vector<float> zeros(512, 0.0F);
  const std::vector<float> back = unpacked(GetParam(), packed(GetParam(), zeros), zeros.size());
  for (const float value : back) ASSERT_EQ(value, 0.0F);
}

// A change of sign or a power of two in a format without minimums changes scales alone.
TEST_P(PackTest, ScalesWithPowersOfTwo) {
  const std::vector<float> values = draw("outliers", 512);
  std::vector<float> scaled = values;
  for (float& value : scaled) value *= 8.0F;
  const std::vector<float> once = unpacked(GetParam(), packed(GetParam(), values), values.size());
  const std::vector<float> twice = unpacked(GetParam(), packed(GetParam(), scaled), values.size());
  // Super-block scales of such values may be subnormal f16s, which have fewer bits.
  const float tolerance = is_block_format(GetParam()) ? 0.02F : 0.0F;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(twice[i], 8.0F * once[i], tolerance * std::fabs(twice[i]) + 2.0F * tolerance) << i;
  }
}

// Non-finite values still make blocks of finite weights, without undefined casts.
TEST_P(BlockPackTest, SurvivesAnything) {
  const float kInfinity = std::numeric_limits<float>::infinity();
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const float kMax = std::numeric_limits<float>::max();
  const float kDenormal = std::numeric_limits<float>::denorm_min();
  for (const float odd : {kInfinity, -kInfinity, kNan, kMax, -kMax, kDenormal, -kDenormal, 1e30F, -0.0F}) {
    for (const std::size_t every : {1, 2, 7, 300}) {
      std::vector<float> values = draw("normal", 512);
      for (std::size_t i = 0; i < values.size(); i += every) values[i] = odd;
      for (const float value : unpacked(GetParam(), packed(GetParam(), values), values.size())) {
        ASSERT_TRUE(std::isfinite(value)) << odd << " every " << every;
      }
    }
  }
}

// Values beyond the largest f16 scale saturate with their sign.
TEST_P(PackTest, SaturatesHugeValues) {
  std::vector<float> values = draw("normal", 512);
  for (float& value : values) value = std::copysign(1e30F, value);
  const std::vector<float> back = unpacked(GetParam(), packed(GetParam(), values), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_GE(back[i] * values[i], 0.0F) << i;
  }
  EXPECT_GT(std::fabs(back[0]), 1e4F);
}

INSTANTIATE_TEST_SUITE_P(Formats, PackTest, testing::ValuesIn(packable_types()), test_name);
INSTANTIATE_TEST_SUITE_P(Formats, LossyPackTest,
                         testing::ValuesIn(packable_types([](DType dtype) { return dtype != DType::kF32; })),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Formats, BlockPackTest, testing::ValuesIn(packable_types(is_block_format)), test_name);

// ---------------------------------------------------------------------------------------------------------------------
// Values that a format can represent exactly are packed exactly, if their codes use the format's whole range: the
// packer sees only values.

struct Exact {
  DType dtype;
  int group;  // weights that share a scale
  int low;    // range of codes
  int high;
  int first_scale;  // range of the groups' integer scales, 1 to 1 if a group has an f16 of its own
  int last_scale;
  bool minimum;
};

class ExactPackTest : public testing::TestWithParam<Exact> {};

TEST_P(ExactPackTest, RepresentableValuesComeBack) {
  const Exact& format = GetParam();
  Random random(11);
  constexpr int kCount = 4096;
  std::vector<float> values;
  float super_scale = 0.0F;
  float minimum_unit = 0.0F;
  const int block = dtype_info(format.dtype).block_size;
  for (int i = 0; i < kCount; i += format.group) {
    const bool first = i % block == 0;
    if (first) {
      super_scale = round_to_f16(static_cast<float>(random.uniform(0.001, 0.01)));
      minimum_unit = round_to_f16(static_cast<float>(random.uniform(0.001, 0.01)));
    }
    // The block's first group has the scale that defines the super-block's.
    const bool integers = format.first_scale != format.last_scale;
    const int extreme = format.first_scale < 0 ? format.first_scale : format.last_scale;
    const int span = format.last_scale - format.first_scale + 1;
    int scale = first || !integers ? extreme : format.first_scale + static_cast<int>(random.below(span));
    if (scale == 0) scale = 1;
    int minimum = format.minimum ? 1 : 0;
    if (format.minimum && integers) {
      minimum = first ? format.last_scale : 1 + static_cast<int>(random.below(format.last_scale));
    }
    for (int w = 0; w < format.group; ++w) {
      int code = format.low + static_cast<int>(random.below(format.high - format.low + 1));
      if (w == 0) code = format.low;
      if (w == 1 && (format.minimum || format.dtype == DType::kQ8_0)) code = format.high;
      const float scaled = super_scale * static_cast<float>(scale) * static_cast<float>(code);
      values.push_back(scaled - minimum_unit * static_cast<float>(minimum));
    }
  }
  const std::vector<float> back = unpacked(format.dtype, packed(format.dtype, values), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(back[i], values[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Formats, ExactPackTest,
    testing::Values(Exact{DType::kQ4_0, 32, -8, 7, 1, 1, false}, Exact{DType::kQ4_1, 32, 0, 15, 1, 1, true},
                    Exact{DType::kQ5_0, 32, -16, 15, 1, 1, false}, Exact{DType::kQ5_1, 32, 0, 31, 1, 1, true},
                    Exact{DType::kQ8_0, 32, -127, 127, 1, 1, false}, Exact{DType::kQ2_K, 16, 0, 3, 0, 15, true},
                    Exact{DType::kQ3_K, 16, -4, 3, -32, 31, false}, Exact{DType::kQ4_K, 32, 0, 15, 0, 63, true},
                    Exact{DType::kQ5_K, 32, 0, 31, 0, 63, true}, Exact{DType::kQ6_K, 16, -32, 31, -128, 127, false}),
    [](const auto& test) { return std::string(dtype_name(test.param.dtype)); });

TEST(ExactPack, LevelsOfTheTablesComeBack) {
  Random random(13);
  std::vector<float> iq4;
  std::vector<float> mxfp4;
  for (int b = 0; b < 64; ++b) {
    const float scale = round_to_f16(static_cast<float>(random.uniform(-0.1, 0.1)));
    const auto power = static_cast<float>(std::ldexp(1.0, static_cast<int>(random.below(200)) - 100));
    for (int w = 0; w < 32; ++w) {
      const auto level = w == 0 ? 0 : static_cast<std::size_t>(random.below(16));
      iq4.push_back(scale * static_cast<float>(kIq4Levels[level]));
      // Down to 1, so that no finer scale represents the same values.
      mxfp4.push_back(power * static_cast<float>(w == 0 ? 12 : w == 1 ? 1 : kMxfp4Levels[level]));
    }
  }
  EXPECT_EQ(unpacked(DType::kIQ4_NL, packed(DType::kIQ4_NL, iq4), iq4.size()), iq4);
  EXPECT_EQ(unpacked(DType::kMXFP4, packed(DType::kMXFP4, mxfp4), mxfp4.size()), mxfp4);
}

TEST(PlainPack, RoundsToNearestEven) {
  const std::vector<float> values = {1.0F, 0x1.01p0F, 0x1.03p0F, 1e6F, -0.0F, 0x1.002p0F, 0x1.006p0F};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const std::vector<float> back = unpacked(dtype, packed(dtype, values), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(back[i], dtype == DType::kF16 ? round_to_f16(values[i]) : round_to_bf16(values[i])) << i;
    }
  }
  EXPECT_EQ(unpacked(DType::kF32, packed(DType::kF32, values), values.size()), values);
}

// Packing to other formats does nothing.
TEST(Unpackable, WritesNothing) {
  const std::vector<float> values(256, 1.0F);
  for (const DType dtype : {DType::kIQ4_XS, DType::kI32}) {
    EXPECT_FALSE(can_pack(dtype));
    for (const char byte : packed(dtype, values)) ASSERT_EQ(byte, '\x5A');
  }
}

}  // namespace
}  // namespace thalweg
