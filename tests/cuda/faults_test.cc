// Bounds and slots that only the device sees: a sequence with a wrong one is skipped and reported, the others are
// right.

#include <vector>

#include "cases/gated_delta.h"
#include "cuda/device.h"
#include "reference/gated_delta_rule.h"

namespace thalweg {
namespace {

using cases::Memory;
using cases::Random;

class Faults : public OnDevice {};

constexpr std::int64_t kHk = 2;
constexpr std::int64_t kHv = 4;
constexpr std::int64_t kHead = 64;

Tensor integers(Memory& memory, const std::vector<int>& values) {
  std::size_t i = 0;
  return memory.input(DType::kI32, {static_cast<std::int64_t>(values.size())},
                      [&] { return static_cast<double>(values[i++]); });
}

// Whether all elements of tensor[index...] are still what an output holds before it is written.
bool unwritten(const ConstTensor& tensor, std::int64_t first, std::int64_t count) {
  const std::int64_t per_index = tensor.size() / tensor.dim(0);
  const auto* bytes = static_cast<const unsigned char*>(tensor.data) + bytes_of(tensor.dtype, first * per_index);
  for (std::int64_t i = 0; i < bytes_of(tensor.dtype, count * per_index); ++i) {
    if (bytes[i] != 0xFF) return false;
  }
  return true;
}

void expect_near(const ConstTensor& actual, const reference::Array& exact, std::int64_t first, std::int64_t count,
                 double tolerance, const std::string& what) {
  const std::vector<double> values = reference::read(actual).values;
  const auto per_index = static_cast<std::int64_t>(values.size()) / actual.dim(0);
  for (std::int64_t i = first * per_index; i < (first + count) * per_index; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_NEAR(values[at], exact.values[at], tolerance) << what << " " << i;
  }
}

template <class Args>
void check_cu_seqlens(const std::string& kernel) {
  Memory memory;
  Random random(3);
  // Sequences of 70 and 65 tokens with two wrong ones in between; for the oracle those two are empty.
  const std::vector<int> wrong = {0, 70, 1000, 70, 135};
  cases::RuleShape shape{.tokens = 135, .hk = kHk, .hv = kHv, .k = kHead, .v = kHead, .dtype = DType::kBF16};
  const cases::RuleInputs inputs = cases::make_rule_inputs(shape, memory, random);
  Args args;
  args.q = inputs.q;
  args.k = inputs.k;
  args.v = inputs.v;
  args.g = inputs.g;
  args.beta = inputs.beta;
  args.head_map = HeadMap::kGrouped;
  args.cu_seqlens = integers(memory, wrong);
  const std::vector<std::int64_t> states = {4, kHv, kHead, kHead};
  args.initial_state = memory.input(DType::kF32, states, [&] { return random.normal(); });
  args.final_state = memory.output(DType::kF32, states);
  args.o = memory.output(DType::kF32, {1, 135, kHv, kHead});
  args.fault = memory.in_out(DType::kI32, {1}, [] { return 0.0; });
  Args right = args;
  right.cu_seqlens = integers(memory, {0, 70, 70, 70, 135});
  const reference::GatedDeltaResult exact = reference::gated_delta_rule(right, {}, reference::Precision::kExact);

  select_kernel(Args::kName, kernel);
  run_on_device(args, memory);
  select_kernel(Args::kName, "");
  EXPECT_EQ(*static_cast<const std::int32_t*>(args.fault.data), kFaultCuSeqlens) << kernel;
  const double tolerance = 0.05;
  expect_near(args.final_state, exact.final_state, 0, 1, tolerance, kernel + " first state");
  expect_near(args.final_state, exact.final_state, 3, 1, tolerance, kernel + " last state");
  EXPECT_TRUE(unwritten(args.final_state, 1, 2)) << kernel;
  expect_near(args.o, exact.o, 0, 1, tolerance, kernel + " outputs");
}

template <class Args>
void check_state_indices(const std::string& kernel, std::int64_t tokens) {
  for (const int bad : {5, -2, 2'000'000'000}) {
    Memory memory;
    Random random(4);
    cases::RuleShape shape{
        .tokens = tokens, .hk = kHk, .hv = kHv, .k = kHead, .v = kHead, .batch = 4, .dtype = DType::kBF16};
    const cases::RuleInputs inputs = cases::make_rule_inputs(shape, memory, random);
    Args args;
    args.q = inputs.q;
    args.k = inputs.k;
    args.v = inputs.v;
    args.g = inputs.g;
    args.beta = inputs.beta;
    args.head_map = HeadMap::kTiled;
    args.state_indices = integers(memory, {2, bad, -1, 0});
    const std::vector<std::int64_t> states = {5, kHv, kHead, kHead};
    args.initial_state = memory.input(DType::kF32, states, [&] { return random.normal(); });
    args.final_state = memory.output(DType::kF32, states);
    args.o = memory.output(DType::kF32, {4, tokens, kHv, kHead});
    args.fault = memory.in_out(DType::kI32, {1}, [] { return 0.0; });
    Args right = args;
    right.state_indices = integers(memory, {2, -1, -1, 0});
    const reference::GatedDeltaResult exact = reference::gated_delta_rule(right, {}, reference::Precision::kExact);

    select_kernel(Args::kName, kernel);
    run_on_device(args, memory);
    select_kernel(Args::kName, "");
    EXPECT_EQ(*static_cast<const std::int32_t*>(args.fault.data), kFaultStateIndices) << kernel;
    expect_near(args.final_state, exact.final_state, 2, 1, 0.05, kernel + " state");
    expect_near(args.final_state, exact.final_state, 0, 1, 0.05, kernel + " state");
    EXPECT_TRUE(unwritten(args.final_state, 1, 1)) << kernel;
    EXPECT_TRUE(unwritten(args.final_state, 3, 2)) << kernel;
    EXPECT_TRUE(unwritten(args.o, 1, 1)) << kernel;
    expect_near(args.o, exact.o, 0, 1, 0.05, kernel + " outputs");
    expect_near(args.o, exact.o, 2, 2, 0.05, kernel + " outputs");
  }
}

TEST_F(Faults, PrefillCuSeqlens) {
  check_cu_seqlens<ChunkGatedDeltaRuleArgs>("");
  check_cu_seqlens<ChunkGatedDeltaRuleArgs>("token_by_token");
}
TEST_F(Faults, PrefillStateIndices) {
  check_state_indices<ChunkGatedDeltaRuleArgs>("", 70);
  check_state_indices<ChunkGatedDeltaRuleArgs>("token_by_token", 70);
}
TEST_F(Faults, RecurrenceCuSeqlens) { check_cu_seqlens<RecurrentGatedDeltaRuleArgs>("registers"); }
TEST_F(Faults, RecurrenceStateIndices) {
  for (const std::int64_t tokens : {1, 3, 8}) {
    check_state_indices<RecurrentGatedDeltaRuleArgs>("decode", tokens);
    check_state_indices<RecurrentGatedDeltaRuleArgs>("registers", tokens);
    if (tokens > 1) check_state_indices<RecurrentGatedDeltaRuleArgs>("decode_together", tokens);
  }
}

TEST_F(Faults, StepStateIndices) {
  for (const std::string kernel : {"", "block"}) {
    for (const std::int64_t tokens : {1, 4}) {
      Memory memory;
      Random random(9);
      const auto normal = [&] { return random.normal(); };
      const std::int64_t channels = 2 * kHk * kHead + kHv * kHead;
      GatedDeltaPrepStepArgs args;
      args.x = memory.input(DType::kBF16, {3, tokens, channels}, normal);
      args.conv_weight = memory.input(DType::kBF16, {channels, 4}, normal);
      args.conv_state = memory.in_out(DType::kBF16, {4, channels, 3}, normal);
      args.gates.a = memory.input(DType::kBF16, {3, tokens, kHv}, normal);
      args.gates.b = memory.input(DType::kBF16, {3, tokens, kHv}, normal);
      args.gates.a_log = memory.input(DType::kF32, {kHv}, normal);
      args.gates.dt_bias = memory.input(DType::kF32, {kHv}, normal);
      args.state_in = memory.input(DType::kF32, {4, kHv, kHead, kHead}, normal);
      args.state_out = memory.output(DType::kF32, {4, kHv, kHead, kHead});
      args.y = memory.output(DType::kF32, {3, tokens, kHv, kHead});
      args.fault = memory.in_out(DType::kI32, {1}, [] { return 0.0; });
      args.head_map = HeadMap::kGrouped;
      args.qk_norm = QkNorm::kL2;
      args.scale = 0.125F;
      args.state_indices = integers(memory, {3, 4, 1});
      GatedDeltaPrepStepArgs right = args;
      right.state_indices = integers(memory, {3, -1, 1});
      const reference::GatedDeltaResult exact = reference::gated_delta_prep_step(right, reference::Precision::kRounded);

      select_kernel(GatedDeltaPrepStepArgs::kName, kernel);
      run_on_device(args, memory);
      select_kernel(GatedDeltaPrepStepArgs::kName, "");
      EXPECT_EQ(*static_cast<const std::int32_t*>(args.fault.data), kFaultStateIndices);
      EXPECT_EQ(reference::read(args.conv_state).values, exact.conv_state.values);
      expect_near(args.state_out, exact.final_state, 3, 1, 1e-3, "state");
      expect_near(args.state_out, exact.final_state, 1, 1, 1e-3, "state");
      EXPECT_TRUE(unwritten(args.state_out, 0, 1) && unwritten(args.state_out, 2, 1));
      expect_near(args.y, exact.o, 0, 1, 1e-3, "y");
      EXPECT_TRUE(unwritten(args.y, 1, 1));
      expect_near(args.y, exact.o, 2, 1, 1e-3, "y");
    }
  }
}

// A count of replays beyond R, and more drafts than R can keep.
TEST_F(Faults, StepReplays) {
  for (const std::string kernel : {"", "block"}) {
    for (const bool counts : {true, false}) {
      SCOPED_TRACE(kernel + (counts ? " counts" : " drafts"));
      Memory memory;
      Random random(11);
      const auto normal = [&] { return random.normal(); };
      const std::int64_t channels = 2 * kHk * kHead + kHv * kHead;
      GatedDeltaPrepStepArgs args;
      args.x = memory.input(DType::kF32, {1, 8, channels}, normal);
      args.gates.a = memory.input(DType::kF32, {1, 8, kHv}, normal);
      args.gates.b = memory.input(DType::kF32, {1, 8, kHv}, normal);
      args.gates.a_log = memory.input(DType::kF32, {kHv}, normal);
      args.gates.dt_bias = memory.input(DType::kF32, {kHv}, normal);
      args.state_in = memory.input(DType::kF32, {3, kHv, kHead, kHead}, normal);
      args.state_out = memory.output(DType::kF32, {3, kHv, kHead, kHead});
      args.y = memory.output(DType::kF32, {1, 8, kHv, kHead});
      args.fault = memory.in_out(DType::kI32, {1}, [] { return 0.0; });
      args.head_map = HeadMap::kGrouped;
      args.qk_norm = QkNorm::kL2;
      args.drafts = true;
      args.replay_x = memory.in_out(DType::kF32, {3, 2, channels}, normal);
      args.replay_a = memory.in_out(DType::kF32, {3, 2, kHv}, normal);
      args.replay_b = memory.in_out(DType::kF32, {3, 2, kHv}, normal);
      // The second sequence is wrong.
      args.cu_seqlens =
          integers(memory, counts ? std::vector<std::int32_t>{0, 2, 5, 8} : std::vector<std::int32_t>{0, 2, 6, 8});
      args.replay_counts = integers(memory, {1, counts ? 3 : 0, 2});
      GatedDeltaPrepStepArgs right = args;
      right.replay_counts = integers(memory, {1, 0, 2});
      const reference::GatedDeltaResult exact = reference::gated_delta_prep_step(right, reference::Precision::kExact);

      select_kernel(GatedDeltaPrepStepArgs::kName, kernel);
      run_on_device(args, memory);
      select_kernel(GatedDeltaPrepStepArgs::kName, "");
      EXPECT_EQ(*static_cast<const std::int32_t*>(args.fault.data), kFaultReplays);
      expect_near(args.state_out, exact.final_state, 0, 1, 1e-4, "first state");
      expect_near(args.state_out, exact.final_state, 2, 1, 1e-4, "last state");
      EXPECT_TRUE(unwritten(args.state_out, 1, 1));
    }
  }
}

// Of many sequences, whose states a kernel reads ahead, every fifth is wrong. The others keep theirs.
TEST_F(Faults, StepReplaysOfManySequences) {
  constexpr std::int64_t kSequences = 150;
  constexpr std::int64_t kWide = 128;
  Memory memory;
  Random random(12);
  const auto normal = [&] { return random.normal(); };
  const std::int64_t channels = 2 * kHk * kWide + kHv * kWide;
  GatedDeltaPrepStepArgs args;
  args.x = memory.input(DType::kF32, {1, 2 * kSequences, channels}, normal);
  args.gates.a = memory.input(DType::kF32, {1, 2 * kSequences, kHv}, normal);
  args.gates.b = memory.input(DType::kF32, {1, 2 * kSequences, kHv}, normal);
  args.gates.a_log = memory.input(DType::kF32, {kHv}, normal);
  args.gates.dt_bias = memory.input(DType::kF32, {kHv}, normal);
  args.state_in = memory.input(DType::kF32, {kSequences, kHv, kWide, kWide}, normal);
  args.state_out = memory.output(DType::kF32, {kSequences, kHv, kWide, kWide});
  args.y = memory.output(DType::kF32, {1, 2 * kSequences, kHv, kWide});
  args.fault = memory.in_out(DType::kI32, {1}, [] { return 0.0; });
  args.head_map = HeadMap::kGrouped;
  args.qk_norm = QkNorm::kL2;
  args.drafts = true;
  args.replay_x = memory.in_out(DType::kF32, {kSequences, 2, channels}, normal);
  args.replay_a = memory.in_out(DType::kF32, {kSequences, 2, kHv}, normal);
  args.replay_b = memory.in_out(DType::kF32, {kSequences, 2, kHv}, normal);
  std::vector<std::int32_t> bounds{0};
  std::vector<std::int32_t> wrong;
  std::vector<std::int32_t> right_counts;
  for (std::int32_t n = 0; n < kSequences; ++n) {
    bounds.push_back(2 * (n + 1));
    right_counts.push_back(n % 5 == 1 ? 0 : n % 2);
    wrong.push_back(n % 5 == 1 ? 3 : n % 2);
  }
  args.cu_seqlens = integers(memory, bounds);
  args.replay_counts = integers(memory, wrong);
  GatedDeltaPrepStepArgs right = args;
  right.replay_counts = integers(memory, right_counts);
  const reference::GatedDeltaResult exact = reference::gated_delta_prep_step(right, reference::Precision::kExact);

  select_kernel(GatedDeltaPrepStepArgs::kName, "split");
  run_on_device(args, memory);
  select_kernel(GatedDeltaPrepStepArgs::kName, "");
  EXPECT_EQ(*static_cast<const std::int32_t*>(args.fault.data), kFaultReplays);
  for (std::int64_t n = 0; n < kSequences; ++n) {
    SCOPED_TRACE(n);
    if (n % 5 == 1) {
      EXPECT_TRUE(unwritten(args.state_out, n, 1));
    } else {
      expect_near(args.state_out, exact.final_state, n, 1, 1e-4, "state");
    }
  }
}

}  // namespace
}  // namespace thalweg
