// cu_seqlens, state indices and expert ids that the host has not checked: invalid ones are skipped and reported, and no
// other memory is touched.

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "cases/memory.h"
#include "metal/host/attach.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/moe.h"
#include "thalweg/operation.h"

namespace thalweg {
namespace {

constexpr Stream kStream{{DeviceType::kMetal, 0}, 0, nullptr};

class DeviceValues : public ::testing::Test {
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
    tensor.device = kStream.device;
    return tensor;
  }

  template <class Args>
  void run_and_check(const Args& args) {
    memory_.reset();
    HostWorkspace scratch;
    run(args, scratch.reserve(workspace_size(args, kStream)), kStream);
    EXPECT_EQ(memory_.check(), "");
  }

  template <class Args>
  Args rule(std::int64_t tokens) {
    Args args;
    args.q = input(DType::kF32, {1, tokens, 1, 32});
    args.k = input(DType::kF32, {1, tokens, 1, 32});
    args.v = input(DType::kF32, {1, tokens, 1, 32});
    args.g = input(DType::kF32, {1, tokens, 1}, std::vector<double>(static_cast<std::size_t>(tokens), -0.5));
    args.beta = input(DType::kF32, {1, tokens, 1});
    args.o = output(DType::kF32, {1, tokens, 1, 32});
    args.fault = in_out(DType::kI32, {1});
    args.head_map = HeadMap::kGrouped;
    args.qk_norm = QkNorm::kL2;
    return args;
  }

  // Rows of x [batch,tokens,..] of one head, K = V = 32, for `slots` states.
  GatedDeltaPrepStepArgs step(const std::array<std::int64_t, 2>& rows, std::int64_t slots) {
    const auto& [batch, tokens] = rows;
    GatedDeltaPrepStepArgs args;
    args.x = input(DType::kF32, {batch, tokens, 96});
    args.gates.a = input(DType::kF32, {batch, tokens, 1});
    args.gates.b = input(DType::kF32, {batch, tokens, 1});
    args.gates.a_log = input(DType::kF32, {1});
    args.gates.dt_bias = input(DType::kF32, {1});
    args.state_in = args.state_out = in_out(DType::kF32, {slots, 1, 32, 32});
    args.y = output(DType::kF32, {batch, tokens, 1, 32});
    args.fault = in_out(DType::kI32, {1});
    args.head_map = HeadMap::kTiled;
    args.qk_norm = QkNorm::kL2;
    return args;
  }

  static bool written(const Tensor& o, std::int64_t token) {
    return !std::isnan(*static_cast<float*>(o.row(0, token)));
  }

  // Sequences of 3 and 70 tokens around one with invalid bounds.
  template <class Args>
  void expect_bad_bounds_reported() {
    auto args = rule<Args>(73);
    args.cu_seqlens = input(DType::kI32, {4}, {0, 3, -5, 73});
    run_and_check(args);
    EXPECT_EQ(*static_cast<std::int32_t*>(args.fault.data), kFaultCuSeqlens);
    EXPECT_TRUE(written(args.o, 0));
    EXPECT_FALSE(written(args.o, 40));
    args.cu_seqlens = input(DType::kI32, {4}, {0, 3, 3, 73});
    run_and_check(args);
    EXPECT_EQ(*static_cast<std::int32_t*>(args.fault.data), 0);
    EXPECT_TRUE(written(args.o, 72));
  }

  template <class Args>
  void expect_bad_indices_reported() {
    auto args = rule<Args>(8);
    args.cu_seqlens = input(DType::kI32, {4}, {0, 2, 5, 8});
    args.initial_state = args.final_state = in_out(DType::kF32, {2, 1, 32, 32});
    args.state_indices = input(DType::kI32, {3}, {1, 2, -1});
    run_and_check(args);
    EXPECT_EQ(*static_cast<std::int32_t*>(args.fault.data), kFaultStateIndices);
    EXPECT_TRUE(written(args.o, 0));
    EXPECT_FALSE(written(args.o, 3));
    EXPECT_TRUE(written(args.o, 5));
    EXPECT_EQ(*static_cast<float*>(args.final_state.row(0, 0, 0)), 0.0F);
    EXPECT_NE(*static_cast<float*>(args.final_state.row(1, 0, 0)), 0.0F);
  }

 private:
  cases::Memory memory_;
};

TEST_F(DeviceValues, PrefillReportsBadBounds) { expect_bad_bounds_reported<ChunkGatedDeltaRuleArgs>(); }
TEST_F(DeviceValues, PrefillReportsBadIndices) { expect_bad_indices_reported<ChunkGatedDeltaRuleArgs>(); }
TEST_F(DeviceValues, RecurrenceReportsBadIndices) { expect_bad_indices_reported<RecurrentGatedDeltaRuleArgs>(); }

TEST_F(DeviceValues, RecurrenceReportsBadBounds) {
  auto args = rule<RecurrentGatedDeltaRuleArgs>(9);
  args.cu_seqlens = input(DType::kI32, {4}, {0, 3, 2, 12});
  run_and_check(args);
  EXPECT_EQ(*static_cast<std::int32_t*>(args.fault.data), kFaultCuSeqlens);
  EXPECT_TRUE(written(args.o, 0));
  EXPECT_FALSE(written(args.o, 8));
}

TEST_F(DeviceValues, StepReportsBadIndices) {
  GatedDeltaPrepStepArgs args = step({2, 1}, 2);
  args.state_indices = input(DType::kI32, {2}, {1, -2});
  run_and_check(args);
  EXPECT_EQ(*static_cast<std::int32_t*>(args.fault.data), kFaultStateIndices);
  EXPECT_FALSE(std::isnan(*static_cast<float*>(args.y.row(0, 0, 0))));
  EXPECT_TRUE(std::isnan(*static_cast<float*>(args.y.row(1, 0, 0))));
}

TEST_F(DeviceValues, StepReportsBadBounds) {
  GatedDeltaPrepStepArgs args = step({1, 9}, 3);
  args.cu_seqlens = input(DType::kI32, {4}, {0, 3, 2, 12});
  run_and_check(args);
  EXPECT_EQ(*static_cast<std::int32_t*>(args.fault.data), kFaultCuSeqlens);
  EXPECT_TRUE(written(args.y, 2));
  EXPECT_FALSE(written(args.y, 3));
  EXPECT_FALSE(written(args.y, 8));
  EXPECT_NE(*static_cast<float*>(args.state_out.row(0, 0, 0)), 0.0F);
  EXPECT_EQ(*static_cast<float*>(args.state_out.row(1, 0, 0)), 0.0F);
  EXPECT_EQ(*static_cast<float*>(args.state_out.row(2, 0, 0)), 0.0F);
}

// Counts below 0 and above R, and more drafts than there is room for.
TEST_F(DeviceValues, StepReportsBadReplays) {
  GatedDeltaPrepStepArgs args = step({1, 8}, 4);
  args.cu_seqlens = input(DType::kI32, {5}, {0, 2, 3, 4, 8});
  args.drafts = true;
  args.replay_x = in_out(DType::kF32, {4, 2, 96});
  args.replay_a = in_out(DType::kF32, {4, 2, 1});
  args.replay_b = in_out(DType::kF32, {4, 2, 1});
  args.replay_counts = input(DType::kI32, {4}, {2, 3, -1, 0});
  run_and_check(args);
  EXPECT_EQ(*static_cast<std::int32_t*>(args.fault.data), kFaultReplays);
  for (std::int64_t t = 0; t < 8; ++t) EXPECT_EQ(written(args.y, t), t < 2) << t;
  EXPECT_EQ(*static_cast<float*>(args.replay_x.row(0, 0)), 0.25F);  // the draft of the first sequence
  for (std::int64_t n = 1; n < 4; ++n) {
    EXPECT_EQ(*static_cast<float*>(args.replay_x.row(n, 0)), 0.0F) << n;
    EXPECT_EQ(*static_cast<float*>(args.state_out.row(n, 0, 0)), 0.0F) << n;
  }
}

TEST_F(DeviceValues, MatmulsLeaveOutIdsThatNameNoExpert) {
  const Tensor weight = input(DType::kF32, {3, 5, 8});
  const Tensor x = input(DType::kF32, {2, 8});
  const Tensor ids = input(DType::kI32, {2, 2}, {2, 3, -1, 0});
  const auto check = [&](auto args) {
    args.weight = weight;
    args.x = x;
    args.expert_ids = ids;
    args.y = output(DType::kF32, {2, 2, 5});
    run_and_check(args);
    EXPECT_EQ(*static_cast<float*>(args.y.row(0, 0)), 0.5F);
    EXPECT_TRUE(std::isnan(*static_cast<float*>(args.y.row(0, 1))));
    EXPECT_TRUE(std::isnan(*static_cast<float*>(args.y.row(1, 0))));
    EXPECT_EQ(*static_cast<float*>(args.y.row(1, 1)), 0.5F);
  };
  check(MulMmIdArgs{});
  check(MulMvIdArgs{});
}

TEST_F(DeviceValues, RowListsOfNoIds) {
  ExpertRowsArgs args;
  args.expert_ids = input(DType::kI32, {0, 2});
  args.expert_offsets = output(DType::kI32, {71});
  args.rows = output(DType::kI32, {0});
  run_and_check(args);
  for (int e = 0; e <= 70; ++e) EXPECT_EQ(static_cast<const std::int32_t*>(args.expert_offsets.data)[e], 0);
}

// More ids than threadgroup memory holds: the lists are made block by block.
TEST_F(DeviceValues, RowListsOfManyIds) {
  constexpr std::int64_t kPairs = 10000;
  std::vector<double> values(kPairs);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * i % 37);
  ExpertRowsArgs args;
  args.expert_ids = input(DType::kI32, {kPairs / 2, 2}, values);
  args.expert_offsets = output(DType::kI32, {38});
  args.rows = output(DType::kI32, {kPairs});
  run_and_check(args);
  const auto* offsets = static_cast<const std::int32_t*>(args.expert_offsets.data);
  const auto* rows = static_cast<const std::int32_t*>(args.rows.data);
  std::int32_t next = 0;
  for (std::int32_t e = 0; e < 37; ++e) {
    ASSERT_EQ(offsets[e], next);
    for (std::int32_t pair = 0; pair < kPairs; ++pair) {
      if (values[static_cast<std::size_t>(pair)] != e) continue;
      ASSERT_EQ(rows[next], pair);
      ++next;
    }
  }
  EXPECT_EQ(offsets[37], kPairs);
}

}  // namespace
}  // namespace thalweg
