// Invalid arguments of quantize and dequantize, and the limits of valid ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cases/blocks.h"
#include "reference/quant.h"
#include "thalweg/error.h"
#include "thalweg/quant.h"

namespace thalweg {
namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kColumns = 512;

// Memory for any format, filled with a byte that shows writes.
class QuantizeTest : public testing::Test {
 protected:
  QuantizeTest() : values_(kRows * kColumns + 64, 1.5F), blocks_(values_.size() * sizeof(float), '\x5A') {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += 0.25F * static_cast<float>(i % 7);
    original_values_ = values_;
    original_blocks_ = blocks_;
  }

  QuantizeArgs quantize_args(DType dtype) {
    return {{values_.data(), DType::kF32, {kRows, kColumns}, kCpu}, {blocks_.data(), dtype, {kRows, kColumns}, kCpu}};
  }
  DequantizeArgs dequantize_args(DType dtype) {
    return {{blocks_.data(), dtype, {kRows, kColumns}, kCpu}, {values_.data(), DType::kF32, {kRows, kColumns}, kCpu}};
  }

  // The call throws; the message names operation and argument and holds what was expected and given; nothing was
  // written.
  template <class Args>
  void expect_error(const Args& args, const std::string& argument, const std::string& expected,
                    const std::string& given, const Stream& stream = Stream::cpu(1)) {
    try {
      run(args, {}, stream);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.operation(), Args::kName);
      EXPECT_EQ(error.argument(), argument) << message;
      EXPECT_EQ(message.find(std::string(Args::kName) + ": " + argument + ": expected "), 0U) << message;
      EXPECT_NE(message.find(expected), std::string::npos) << message;
      EXPECT_NE(message.find(", got " + given), std::string::npos) << message;
    }
    EXPECT_EQ(values_, original_values_);
    EXPECT_EQ(blocks_, original_blocks_);
  }

  std::vector<float> values_;
  std::vector<char> blocks_;
  std::vector<float> original_values_;
  std::vector<char> original_blocks_;
};

TEST_F(QuantizeTest, RefusesWrongShapes) {
  auto args = quantize_args(DType::kQ4_0);
  args.blocks.shape[0] = kRows - 1;
  expect_error(args, "blocks", "[R=3,K=512]", "Q4_0 [2,512]");
  args = quantize_args(DType::kQ4_0);
  args.blocks.shape[1] = 256;
  expect_error(args, "blocks", "[R=3,K=512]", "Q4_0 [3,256]");
  args = quantize_args(DType::kQ4_0);
  args.values = {values_.data(), DType::kF32, {kRows * kColumns}, kCpu};
  expect_error(args, "values", "F32 [R,K]", "F32 [1536]");
  args = quantize_args(DType::kQ4_0);
  args.values.shape[0] = -1;
  expect_error(args, "values", "F32 [R,K]", "F32 [-1,512]");
  args = quantize_args(DType::kQ4_0);
  args.values = {};
  expect_error(args, "values", "F32 [R,K]", "nothing");

  auto back = dequantize_args(DType::kQ4_0);
  back.values.shape[1] = 480;
  expect_error(back, "values", "[R=3,K=512]", "F32 [3,480]");
  back = dequantize_args(DType::kQ4_0);
  back.blocks = {};
  expect_error(back, "blocks", "any dtype but I32 [R,K]", "nothing");
}

TEST_F(QuantizeTest, RefusesBrokenBlocks) {
  // Whole rows are blocks: 48 is no multiple of 32, 288 none of 256.
  auto args = quantize_args(DType::kQ8_0);
  args.values = {values_.data(), DType::kF32, {2, 48}, kCpu};
  args.blocks = {blocks_.data(), DType::kQ8_0, {2, 48}, kCpu};
  expect_error(args, "blocks", "rows of whole blocks of 32 weights", "Q8_0 [2,48]");
  DequantizeArgs back = dequantize_args(DType::kQ4_K);
  back.blocks = {blocks_.data(), DType::kQ4_K, {2, 288}, kCpu};
  back.values = {values_.data(), DType::kF32, {2, 288}, kCpu};
  expect_error(back, "blocks", "rows of whole blocks of 256 weights", "Q4_K [2,288]");
  // And start at one.
  back = dequantize_args(DType::kQ4_K);
  back.blocks = {blocks_.data(), DType::kQ4_K, {2, 256}, kCpu};
  back.blocks.strides[0] = 300;
  back.values = {values_.data(), DType::kF32, {2, 256}, kCpu};
  expect_error(back, "blocks", "rows of whole blocks of 256 weights", "Q4_K [2,256] with strides [300,1]");
}

TEST_F(QuantizeTest, RefusesOtherTypes) {
  auto args = quantize_args(DType::kI32);
  expect_error(args, "blocks", "MXFP4 [R=3,K=512]", "I32 [3,512]");
  args = quantize_args(DType::kIQ4_XS);
  expect_error(args, "blocks", "IQ4_NL or MXFP4 [R=3,K=512]", "IQ4_XS [3,512]");
  args = quantize_args(DType::kQ8_0);
  args.values.dtype = DType::kF16;
  expect_error(args, "values", "F32 [R,K]", "F16 [3,512]");

  auto back = dequantize_args(DType::kI32);
  expect_error(back, "blocks", "any dtype but I32 [R,K]", "I32 [3,512]");
  back = dequantize_args(DType::kQ8_0);
  back.values.dtype = DType::kBF16;
  expect_error(back, "values", "F32 [R=3,K=512]", "BF16 [3,512]");
}

TEST_F(QuantizeTest, RefusesOverlap) {
  auto args = quantize_args(DType::kQ8_0);
  args.blocks.data = values_.data() + kColumns;
  expect_error(args, "blocks", "memory of its own", "memory that overlaps values");
  auto back = dequantize_args(DType::kF32);
  back.blocks.data = values_.data();
  expect_error(back, "values", "memory of its own", "memory that overlaps blocks");
  // Overlapping rows of the output.
  back = dequantize_args(DType::kQ8_0);
  back.values.strides[0] = kColumns - 1;
  expect_error(back, "values", "an output whose elements do not overlap", "F32 [3,512] with strides [511,1]");
  args = quantize_args(DType::kQ8_0);
  args.blocks.strides[0] = 0;
  expect_error(args, "blocks", "an output whose elements do not overlap", "Q8_0 [3,512] with strides [0,1]");
}

TEST_F(QuantizeTest, RefusesBadMemory) {
  auto args = quantize_args(DType::kQ8_0);
  args.values.data = nullptr;
  expect_error(args, "values", "memory for F32 [3,512]", "a null pointer");
  args = quantize_args(DType::kQ8_0);
  args.blocks.data = nullptr;
  expect_error(args, "blocks", "memory for Q8_0 [3,512]", "a null pointer");
  auto back = dequantize_args(DType::kF16);
  back.blocks.data = blocks_.data() + 1;
  expect_error(back, "blocks", "data aligned to 2 bytes, the size of an element", "an address that is not");
  back = dequantize_args(DType::kQ8_0);
  back.values.strides[1] = 2;
  expect_error(back, "values", "a contiguous innermost dimension", "F32 [3,512] with strides [512,2]");
  back = dequantize_args(DType::kQ8_0);
  back.blocks.strides[0] = -kColumns;
  expect_error(back, "blocks", "strides between 0 and 2^48", "Q8_0 [3,512] with strides [-512,1]");
}

TEST_F(QuantizeTest, RefusesValuesThatAreNotFinite) {
  const std::size_t at = 2 * kColumns + 511;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const DType dtype : {DType::kF32, DType::kQ8_0}) {
      const float good = values_[at];
      values_[at] = bad;
      auto args = quantize_args(dtype);
      try {
        quantize(args, {}, Stream::cpu(1));
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.argument(), "values");
        EXPECT_NE(std::string(error.what()).find("finite numbers, got " + std::to_string(bad) + " at [2,511]"),
                  std::string::npos)
            << error.what();
      }
      EXPECT_EQ(blocks_, original_blocks_);
      values_[at] = good;
    }
  }
}

TEST_F(QuantizeTest, TakesMatricesOfExperts) {
  auto flat = quantize_args(DType::kQ8_0);
  flat.values = {values_.data(), DType::kF32, {6, 256}, kCpu};
  flat.blocks = {blocks_.data(), DType::kQ8_0, {6, 256}, kCpu};
  quantize(flat, {}, Stream::cpu(1));
  const std::vector<char> expected = blocks_;
  blocks_ = original_blocks_;
  QuantizeArgs args = flat;
  args.values = {values_.data(), DType::kF32, {3, 2, 256}, kCpu};
  args.blocks = {blocks_.data(), DType::kQ8_0, {3, 2, 256}, kCpu};
  quantize(args, {}, Stream::cpu(1));
  EXPECT_EQ(blocks_, expected);
  args.blocks = flat.blocks;
  EXPECT_THROW(quantize(args, {}, Stream::cpu(1)), Error);
  values_[300] = std::numeric_limits<float>::quiet_NaN();
  args.blocks = {blocks_.data(), DType::kQ8_0, {3, 2, 256}, kCpu};
  try {
    quantize(args, {}, Stream::cpu(1));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("nan at [0,1,44]"), std::string::npos) << error.what();
  }
}

TEST_F(QuantizeTest, RefusesAnotherDevice) {
  auto args = quantize_args(DType::kQ8_0);
  args.values.device = {DeviceType::kCuda, 0};
  expect_error(args, "values", "a tensor on the stream's device, cpu", "F32 [3,512] on cuda:0");
  auto back = dequantize_args(DType::kQ8_0);
  back.values.device = {DeviceType::kMetal, 0};
  expect_error(back, "values", "a tensor on the stream's device, cpu", "F32 [3,512] on metal:0");
}

TEST_F(QuantizeTest, NeedsNoMemoryToExplain) {
  const QuantizeArgs args{{nullptr, DType::kF32, {kRows, kColumns}, kCpu},
                          {nullptr, DType::kQ4_K, {kRows, kColumns}, kCpu}};
  EXPECT_EQ(workspace_size(args, Stream::cpu()), 0U);
  const Explanation explanation = explain(args, Stream::cpu());
  ASSERT_EQ(explanation.chosen, 0);
  EXPECT_EQ(explanation.kernels[0].kernel, "rows");
  EXPECT_THROW(
      workspace_size(QuantizeArgs{args.values, {nullptr, DType::kIQ4_XS, {kRows, kColumns}, kCpu}}, Stream::cpu()),
      Error);
}

// Repeated input rows (stride 0) are legal.
TEST_F(QuantizeTest, ReadsRepeatedRows) {
  auto args = quantize_args(DType::kQ8_0);
  args.values.strides[0] = 0;
  quantize(args, {}, Stream::cpu(1));
  const auto row = static_cast<std::ptrdiff_t>(bytes_of(DType::kQ8_0, kColumns));
  EXPECT_TRUE(std::equal(blocks_.begin(), blocks_.begin() + row, blocks_.begin() + 2 * row));
}

// The bits do not depend on the number of threads.
TEST_F(QuantizeTest, DoesNotDependOnThreads) {
  const std::int64_t rows = 5;
  const std::int64_t columns = 8448;
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  cases::Random random(17);
  for (float& value : values) value = static_cast<float>(random.normal());
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_K}) {
    const auto bytes = static_cast<std::size_t>(bytes_of(dtype, rows * columns));
    std::vector<char> once(bytes);
    std::vector<char> again(bytes);
    std::vector<float> back(values.size());
    std::vector<float> back_again(values.size());
    const ConstTensor from(values.data(), DType::kF32, {rows, columns}, kCpu);
    quantize({from, {once.data(), dtype, {rows, columns}, kCpu}}, {}, Stream::cpu(1));
    quantize({from, {again.data(), dtype, {rows, columns}, kCpu}}, {}, Stream::cpu(4));
    EXPECT_EQ(once, again);
    const ConstTensor blocks(once.data(), dtype, {rows, columns}, kCpu);
    dequantize({blocks, {back.data(), DType::kF32, {rows, columns}, kCpu}}, {}, Stream::cpu(1));
    dequantize({blocks, {back_again.data(), DType::kF32, {rows, columns}, kCpu}}, {}, Stream::cpu(3));
    EXPECT_EQ(back, back_again);
    for (std::size_t i = 0; i < back.size(); i += 101) {
      ASSERT_EQ(back[i], reference::unpack_one(dtype, once.data(), static_cast<std::int64_t>(i)));
    }
  }
}

}  // namespace
}  // namespace thalweg
