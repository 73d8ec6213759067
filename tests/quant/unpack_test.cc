#include "quant/unpack.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "cases/blocks.h"
#include "quant/goldens.h"
#include "reference/quant.h"

namespace thalweg {
namespace {

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

struct Golden {
  std::vector<char> blocks;
  std::vector<float> values;
};

Golden load(DType dtype) {
  Golden golden;
  golden.blocks = read_golden(std::string(dtype_name(dtype)) + ".blocks");
  const std::vector<char> bytes = read_golden(std::string(dtype_name(dtype)) + ".values");
  golden.values.resize(bytes.size() / sizeof(float));
  std::memcpy(golden.values.data(), bytes.data(), golden.values.size() * sizeof(float));
  return golden;
}

class UnpackTest : public testing::TestWithParam<DType> {};
class GoldenUnpackTest : public UnpackTest {};

TEST_P(GoldenUnpackTest, MatchesTheGoldensToTheBit) {
  const Golden golden = load(GetParam());
  const auto count = static_cast<std::int64_t>(golden.values.size());
  ASSERT_GT(count, 100);
  ASSERT_EQ(bytes_of(GetParam(), count), static_cast<std::int64_t>(golden.blocks.size()));
  std::vector<float> values(golden.values.size(), std::nanf(""));
  unpack(GetParam(), golden.blocks.data(), count, values.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(bits(values[i]), bits(golden.values[i])) << "weight " << i << ": " << values[i];
    const float one = reference::unpack_one(GetParam(), golden.blocks.data(), static_cast<std::int64_t>(i));
    ASSERT_EQ(bits(one), bits(golden.values[i])) << "weight " << i << " of the reference: " << one;
  }
}

TEST_P(UnpackTest, MatchesTheReferenceAtAnyAddress) {
  const std::int64_t count = 16 * 256;
  const std::int64_t bytes = bytes_of(GetParam(), count);
  for (const auto scales : {cases::BlockScales::kOrdinary, cases::BlockScales::kEdge}) {
    cases::Random random(3);
    std::vector<char> blocks(static_cast<std::size_t>(bytes));
    cases::fill_blocks(GetParam(), scales, random, blocks.data(), count);
    for (const std::size_t shift : {0, 1, 3}) {
      std::vector<char> moved(static_cast<std::size_t>(bytes) + shift);
      std::memcpy(moved.data() + shift, blocks.data(), blocks.size());
      std::vector<float> values(static_cast<std::size_t>(count));
      unpack(GetParam(), moved.data() + shift, count, values.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const float one = reference::unpack_one(GetParam(), blocks.data(), i);
        ASSERT_EQ(bits(values[static_cast<std::size_t>(i)]), bits(one)) << "weight " << i << ", shift " << shift;
      }
    }
  }
}

TEST_P(UnpackTest, WritesNothingBeyondItsWeights) {
  const int count = dtype_info(GetParam()).block_size;
  const std::vector<char> blocks(static_cast<std::size_t>(dtype_info(GetParam()).block_bytes), 0);
  std::vector<float> values(static_cast<std::size_t>(count) + 1, -77.0F);
  unpack(GetParam(), blocks.data(), 0, values.data());
  EXPECT_EQ(values[0], -77.0F);
  unpack(GetParam(), blocks.data(), count, values.data());
  EXPECT_EQ(values.back(), -77.0F);
  EXPECT_EQ(values[static_cast<std::size_t>(count) - 1], 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Formats, UnpackTest, testing::ValuesIn(weight_types()), test_name);
// F32 comes first and is not unpacked.
INSTANTIATE_TEST_SUITE_P(Formats, GoldenUnpackTest, testing::ValuesIn(weight_types().begin() + 1, weight_types().end()),
                         test_name);

// The packed scales of a super-block round-trip.
TEST(GroupScales, RoundTrip) {
  cases::Random random(5);
  for (int round = 0; round < 50; ++round) {
    std::array<std::uint8_t, 12> q3{};
    std::array<std::uint8_t, 12> q45{};
    std::array<int, 16> scales{};
    std::array<GroupScale, 8> groups{};
    for (int g = 0; g < 16; ++g) {
      scales[static_cast<std::size_t>(g)] = static_cast<int>(random.below(64));
      set_q3_group_scale(q3, g, scales[static_cast<std::size_t>(g)]);
    }
    for (int g = 0; g < 8; ++g) {
      GroupScale& group = groups[static_cast<std::size_t>(g)];
      group = {static_cast<int>(random.below(64)), static_cast<int>(random.below(64))};
      set_q45_group(q45, g, group);
    }
    for (int g = 0; g < 16; ++g) ASSERT_EQ(q3_group_scale(q3, g), scales[static_cast<std::size_t>(g)]);
    for (int g = 0; g < 8; ++g) {
      ASSERT_EQ(q45_group(q45, g).scale, groups[static_cast<std::size_t>(g)].scale);
      ASSERT_EQ(q45_group(q45, g).minimum, groups[static_cast<std::size_t>(g)].minimum);
    }
  }
}

}  // namespace
}  // namespace thalweg
