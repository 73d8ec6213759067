// Lengths, slots, pages and ids that the host has not checked: what is out of range is left out, and no other memory is
// touched, by either kernel of an operation.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cases/memory.h"
#include "metal/host/attach.h"
#include "metal/host/executor.h"
#include "thalweg/nn.h"
#include "thalweg/operation.h"
#include "thalweg/sampling.h"

namespace thalweg {
namespace {

class LayerValues : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { metal::attach_executor(); }  // NOLINT(readability-identifier-naming)

  Tensor input(DType dtype, const std::vector<std::int64_t>& shape, std::vector<double> values = {}) {
    std::size_t i = 0;
    return on_metal(memory_.input(dtype, shape, [&] { return values.empty() ? 0.25 : values.at(i++); }));
  }
  Tensor output(DType dtype, const std::vector<std::int64_t>& shape) { return on_metal(memory_.output(dtype, shape)); }
  Tensor in_out(DType dtype, const std::vector<std::int64_t>& shape) {
    return on_metal(memory_.in_out(dtype, shape, [] { return 0.0; }));
  }
  static Tensor on_metal(Tensor tensor) {
    tensor.device = {DeviceType::kMetal, 0};
    return tensor;
  }

  template <class Args>
  void run_and_check(const Args& args, RowHint rows = RowHint::kByCount) {
    memory_.reset();
    const Stream stream{{DeviceType::kMetal, 0}, 0, nullptr, rows};
    HostWorkspace scratch;
    run(args, scratch.reserve(workspace_size(args, stream)), stream);
    EXPECT_EQ(memory_.check(), "");
  }

  static float value(const Tensor& tensor, std::int64_t i) { return static_cast<const float*>(tensor.data)[i]; }

  cases::Memory memory_;
};

TEST_F(LayerValues, AttentionLeavesOutSequencesOutOfRange) {
  AttentionArgs args;
  args.q = input(DType::kF32, {4, 2, 32});
  args.k_cache = input(DType::kF32, {2, 8, 1, 32});
  args.v_cache = input(DType::kF32, {2, 8, 1, 32});
  args.cu_seqlens = input(DType::kI32, {5}, {0, 1, 2, 3, 4});
  args.lengths = input(DType::kI32, {4}, {2, 9, 1, 0});  // too long; none of a new token
  args.slots = input(DType::kI32, {4}, {0, 1, 5, 1});    // no such slot
  args.o = output(DType::kF32, {4, 2, 32});
  for (const RowHint rows : {RowHint::kFew, RowHint::kMany}) {
    run_and_check(args, rows);
    EXPECT_FLOAT_EQ(value(args.o, 0), 0.25F);
    for (const std::int64_t token : {1, 2, 3}) EXPECT_TRUE(std::isnan(value(args.o, token * 64))) << token;
  }
}

TEST_F(LayerValues, AttentionTakesPagesThatDoNotExistForEmpty) {
  AttentionArgs args;
  args.q = input(DType::kF32, {1, 1, 32});
  args.k_cache = input(DType::kF32, {3, 4, 1, 32});
  args.v_cache = input(DType::kF32, {3, 4, 1, 32});
  args.cu_seqlens = input(DType::kI32, {2}, {0, 1});
  args.lengths = input(DType::kI32, {1}, {8});
  args.pages = input(DType::kI32, {1, 2}, {2, 7});
  args.o = output(DType::kF32, {1, 1, 32});
  for (const RowHint rows : {RowHint::kFew, RowHint::kMany}) {
    run_and_check(args, rows);
    EXPECT_TRUE(std::isfinite(value(args.o, 0)));
  }
}

TEST_F(LayerValues, StoreKvWritesNothingOfSequencesOutOfRange) {
  StoreKvArgs args;
  args.k = input(DType::kF32, {3, 1, 16});
  args.v = input(DType::kF32, {3, 1, 16});
  args.cu_seqlens = input(DType::kI32, {4}, {0, 1, 2, 3});
  args.lengths = input(DType::kI32, {3}, {2, 5, 1});  // S is 4
  args.slots = input(DType::kI32, {3}, {0, 1, -2});
  args.k_cache = in_out(DType::kF32, {2, 4, 1, 16});
  args.v_cache = in_out(DType::kF32, {2, 4, 1, 16});
  run_and_check(args);
  for (std::int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(value(args.k_cache, row * 16), row == 1 ? 0.25F : 0.0F);
    EXPECT_EQ(value(args.v_cache, row * 16), row == 1 ? 0.25F : 0.0F);
  }
}

TEST_F(LayerValues, SamplingReportsLogitsAndSlots) {
  for (const bool draws : {false, true}) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double infinity = std::numeric_limits<double>::infinity();
    SampleTokensArgs args;
    args.logits = input(DType::kF32, {4, 3}, {0, 2, 1, 0, nan, 1, -infinity, -infinity, -infinity, 0, 1, 2});
    args.lengths = input(DType::kI32, {4}, {1, 1, 1, 1});
    args.history = input(DType::kI32, {3, 2}, {0, 0, 0, 0, 0, 0});
    args.slots = input(DType::kI32, {4}, {0, 1, 2, 3});
    if (draws) args.temperature = input(DType::kF32, {4}, {1e-6, 1e-6, 1e-6, 1e-6});
    args.tokens = output(DType::kI32, {4});
    args.fault = in_out(DType::kI32, {1});
    run_and_check(args);
    const auto* tokens = static_cast<const std::int32_t*>(args.tokens.data);
    EXPECT_EQ(tokens[0], 1);
    for (const int n : {1, 2, 3}) EXPECT_EQ(tokens[n], -1) << n;
    EXPECT_EQ(*static_cast<const std::int32_t*>(args.fault.data), kFaultLogits | kFaultStateIndices);
  }
}

TEST_F(LayerValues, EmbeddingOfNoTokenIsZero) {
  EmbeddingArgs args;
  args.ids = input(DType::kI32, {3}, {1, -1, 50});
  args.table = input(DType::kF32, {4, 20});
  args.y = output(DType::kF32, {3, 20});
  run_and_check(args);
  for (const std::int64_t token : {0, 1, 2}) EXPECT_EQ(value(args.y, token * 20), token == 0 ? 0.25F : 0.0F);
}

TEST_F(LayerValues, ConvolutionsLeaveOutSlotsOutOfRange) {
  CausalConv1dArgs args;
  args.x = input(DType::kF32, {2, 3, 5});
  args.weight = input(DType::kF32, {5, 4});
  args.initial_state = input(DType::kF32, {2, 5, 3});
  args.final_state = in_out(DType::kF32, {2, 5, 3});
  args.state_indices = input(DType::kI32, {2}, {1, 2});
  args.y = output(DType::kF32, {2, 3, 5});
  run_and_check(args);
  EXPECT_FALSE(std::isnan(value(args.y, 0)));
  EXPECT_TRUE(std::isnan(value(args.y, 15)));
  EXPECT_EQ(value(args.final_state, 0), 0.0F);
  EXPECT_EQ(value(args.final_state, 15), 0.25F);
}

// The formulas of docs/metal.md: loads of keys and values, with 16 query heads on 2.
TEST_F(LayerValues, AttentionReadsKeysOnceForFourHeads) {
  AttentionArgs args;
  args.q = input(DType::kF32, {1, 16, 64});
  args.k_cache = input(DType::kF32, {1, 100, 2, 64});
  args.v_cache = input(DType::kF32, {1, 100, 2, 64});
  args.cu_seqlens = input(DType::kI32, {2}, {0, 1});
  args.lengths = input(DType::kI32, {1}, {100});
  args.o = output(DType::kF32, {1, 16, 64});
  metal::reset_executor_counts();
  run_and_check(args, RowHint::kFew);
  const metal::Counts counts = metal::executor_total();
  const std::uint64_t cache = 2 * (2 * 2) * 100 * 64 * 4;  // keys and values, each key head for two groups of four
  EXPECT_EQ(counts.launches, 1U);
  EXPECT_GE(counts.device_bytes_read, cache + 16 * 64 * 4);
  EXPECT_LE(counts.device_bytes_read, cache + 16 * 64 * 4 + 128 * 4 * 64);  // and what says where they are
}

}  // namespace
}  // namespace thalweg
