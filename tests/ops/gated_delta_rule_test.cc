// Properties of the gated delta rule's operations across several calls.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cases/gated_delta.h"
#include "ops/run_with_workspace.h"
#include "reference/gated_delta_rule.h"

namespace thalweg {
namespace {

using cases::Gates;
using cases::Memory;
using cases::Random;
using cases::RuleShape;

double relative_l2(const std::vector<double>& actual, const std::vector<double>& exact) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (actual[i] - exact[i]) * (actual[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(error / std::max(size, 1e-300));
}

// A whole operation with its tensors.
template <class Args>
struct Rule {
  Memory memory;
  Args args;

  explicit Rule(const RuleShape& shape, std::uint64_t seed = 7) {
    Random random(seed);
    const cases::RuleInputs inputs = cases::make_rule_inputs(shape, memory, random);
    args.q = inputs.q;
    args.k = inputs.k;
    args.v = inputs.v;
    args.g = inputs.g;
    args.beta = inputs.beta;
    args.cu_seqlens = inputs.cu_seqlens;
    args.head_map = shape.head_map;
    const std::vector<std::int64_t> states = {shape.num_sequences(), shape.hv, shape.v, shape.k};
    args.initial_state = memory.input(DType::kF32, states, [&] { return random.normal(); });
    args.final_state = memory.output(DType::kF32, states);
    args.o = memory.output(shape.dtype, {shape.batch, shape.total_tokens(), shape.hv, shape.v});
  }
};

// Tokens [begin, end) of a tensor [B,T,...].
template <class AnyTensor>
AnyTensor tokens_of(const AnyTensor& tensor, std::int64_t begin, std::int64_t end) {
  return narrow(tensor, 1, begin, end - begin);
}

template <class Args>
Args slice(const Args& whole, std::int64_t begin, std::int64_t end) {
  Args result = whole;
  result.q = tokens_of(whole.q, begin, end);
  result.k = tokens_of(whole.k, begin, end);
  result.v = tokens_of(whole.v, begin, end);
  result.g = tokens_of(whole.g, begin, end);
  result.beta = tokens_of(whole.beta, begin, end);
  result.o = tokens_of(whole.o, begin, end);
  return result;
}

TEST(Oracles, RecurrenceAndChunkFormAgree) {
  for (const Gates gates : {Gates::kNone, Gates::kNear, Gates::kStrong, Gates::kMixed}) {
    for (const HeadMap map : {HeadMap::kGrouped, HeadMap::kTiled}) {
      for (const RuleShape& base : {RuleShape{.tokens = 150}, RuleShape{.lengths = {0, 65, 3, 64}}}) {
        RuleShape shape = base;
        shape.k = 32;
        shape.v = 16;
        shape.gates = gates;
        shape.head_map = map;
        const Rule<ChunkGatedDeltaRuleArgs> rule(shape);
        const reference::Rule inputs = reference::read_rule(rule.args);
        const reference::RuleResult exact = reference::recurrence(inputs);
        for (const std::int64_t chunk : {16, 64}) {
          const reference::RuleResult other = reference::chunk_form(inputs, chunk);
          EXPECT_LT(relative_l2(other.o.values, exact.o.values), 1e-12);
          EXPECT_LT(relative_l2(other.final_state.values, exact.final_state.values), 1e-12);
        }
      }
    }
  }
}

// The stages, chained through their outputs, equal the whole operation.
TEST(Stages, TheChainIsTheWhole) {
  for (const int chunk_size : {16, 32, 64}) {
    const RuleShape shape{
        .k = 64, .v = 32, .lengths = {70, 0, 129, 5}, .head_map = HeadMap::kTiled, .gates = Gates::kMixed};
    Rule<ChunkGatedDeltaRuleArgs> rule(shape);
    const ChunkGatedDeltaRuleArgs& in = rule.args;
    Memory& memory = rule.memory;
    const std::int64_t t = shape.total_tokens();
    std::int64_t chunks = 0;
    for (const std::int64_t length : shape.lengths) chunks += (length + chunk_size - 1) / chunk_size;
    const Tensor g = memory.output(DType::kF32, {1, t, shape.hv});
    const Tensor a = memory.output(DType::kF32, {1, t, shape.hv, chunk_size});
    const Tensor a_inv = memory.output(DType::kF32, {1, t, shape.hv, chunk_size});
    const Tensor w = memory.output(DType::kF32, {1, t, shape.hv, shape.k});
    const Tensor u = memory.output(DType::kF32, {1, t, shape.hv, shape.v});
    const Tensor h = memory.output(DType::kF32, {1, chunks, shape.hv, shape.v, shape.k});
    const Tensor v_new = memory.output(DType::kF32, {1, t, shape.hv, shape.v});
    run_with_workspace(ChunkLocalCumsumArgs{in.g, in.cu_seqlens, g, chunk_size});
    run_with_workspace(ChunkScaledDotKktArgs{in.k, in.beta, g, in.cu_seqlens, a, chunk_size, shape.head_map});
    run_with_workspace(SolveTrilArgs{a, in.cu_seqlens, a_inv, chunk_size});
    run_with_workspace(RecomputeWUArgs{in.k, in.v, in.beta, g, a_inv, in.cu_seqlens, w, u, chunk_size, shape.head_map});
    run_with_workspace(ChunkStateArgs{.k = in.k,
                                      .w = w,
                                      .u = u,
                                      .g_cumsum = g,
                                      .initial_state = in.initial_state,
                                      .cu_seqlens = in.cu_seqlens,
                                      .h = h,
                                      .v_new = v_new,
                                      .final_state = in.final_state,
                                      .chunk_size = chunk_size,
                                      .head_map = shape.head_map});
    run_with_workspace(ChunkOutputArgs{.q = in.q,
                                       .k = in.k,
                                       .v_new = v_new,
                                       .h = h,
                                       .g_cumsum = g,
                                       .cu_seqlens = in.cu_seqlens,
                                       .o = in.o,
                                       .chunk_size = chunk_size,
                                       .head_map = shape.head_map});
    const reference::RuleResult exact = reference::recurrence(reference::read_rule(in));
    EXPECT_LT(relative_l2(reference::read(in.o).values, exact.o.values), 2e-5);
    EXPECT_LT(relative_l2(reference::read(in.final_state).values, exact.final_state.values), 2e-5);
    EXPECT_EQ(memory.check(), "");
  }
}

TEST(GatedDeltaRule, PrefillIsAsManyDecodeSteps) {
  for (const Gates gates : {Gates::kNear, Gates::kMixed}) {
    const RuleShape shape{.tokens = 90, .k = 64, .v = 64, .gates = gates};
    Rule<ChunkGatedDeltaRuleArgs> prefill(shape);
    run_with_workspace(prefill.args);
    Rule<RecurrentGatedDeltaRuleArgs> decode(shape);
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      RecurrentGatedDeltaRuleArgs step = slice(decode.args, t, t + 1);
      if (t > 0) step.initial_state = decode.args.final_state;
      run_with_workspace(step);
    }
    const auto values = [](const ConstTensor& tensor) { return reference::read(tensor).values; };
    EXPECT_LT(relative_l2(values(prefill.args.o), values(decode.args.o)), 2e-5);
    EXPECT_LT(relative_l2(values(prefill.args.final_state), values(decode.args.final_state)), 2e-5);
  }
}

template <class Args>
void expect_split_equals_whole(const RuleShape& shape, double tolerance) {
  Rule<Args> whole(shape);
  run_with_workspace(whole.args);
  const std::vector<double> o = reference::read(whole.args.o).values;
  const std::vector<double> state = reference::read(whole.args.final_state).values;
  for (std::int64_t split = 0; split <= shape.tokens; split += split < 66 ? 1 : 13) {
    Rule<Args> halves(shape);
    run_with_workspace(slice(halves.args, 0, split));
    Args second = slice(halves.args, split, shape.tokens);
    second.initial_state = halves.args.final_state;
    run_with_workspace(second);
    if (tolerance == 0.0) {
      EXPECT_EQ(reference::read(halves.args.o).values, o) << split;
      EXPECT_EQ(reference::read(halves.args.final_state).values, state) << split;
    }
    EXPECT_LE(relative_l2(reference::read(halves.args.o).values, o), tolerance) << split;
    EXPECT_LE(relative_l2(reference::read(halves.args.final_state).values, state), tolerance) << split;
  }
}

TEST(GatedDeltaRule, PrefillSplitAnywhereIsTheWhole) {
  expect_split_equals_whole<ChunkGatedDeltaRuleArgs>({.tokens = 140, .k = 32, .v = 32, .gates = Gates::kMixed}, 2e-5);
}

TEST(GatedDeltaRule, RecurrenceSplitAnywhereIsTheWholeToTheBit) {
  expect_split_equals_whole<RecurrentGatedDeltaRuleArgs>({.tokens = 40, .k = 32, .v = 32}, 0.0);
}

template <class Args>
void expect_ragged_equals_one_by_one(DType dtype) {
  const RuleShape shape{.k = 64, .v = 32, .lengths = {17, 0, 64, 130, 1}, .dtype = dtype, .gates = Gates::kMixed};
  Rule<Args> packed(shape);
  run_with_workspace(packed.args);
  const std::vector<double> o = reference::read(packed.args.o).values;
  const std::vector<double> states = reference::read(packed.args.final_state).values;
  Rule<Args> alone(shape);
  std::int64_t begin = 0;
  for (std::int64_t n = 0; n < shape.num_sequences(); ++n) {
    const std::int64_t end = begin + shape.lengths[static_cast<std::size_t>(n)];
    Args one = slice(alone.args, begin, end);
    one.cu_seqlens = {};
    for (ConstTensor* state : {&one.initial_state}) {
      state->data = state->row(n);
      state->shape[0] = 1;
    }
    one.final_state.data = one.final_state.row(n);
    one.final_state.shape[0] = 1;
    run_with_workspace(one);
    begin = end;
  }
  EXPECT_EQ(reference::read(alone.args.o).values, o);
  EXPECT_EQ(reference::read(alone.args.final_state).values, states);
}

TEST(GatedDeltaRule, RaggedBatchIsItsSequencesOneByOneToTheBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_ragged_equals_one_by_one<ChunkGatedDeltaRuleArgs>(dtype);
    expect_ragged_equals_one_by_one<RecurrentGatedDeltaRuleArgs>(dtype);
  }
}

// A snapshot is the state to roll back to: continuing from it gives the same bits as never having stopped.
TEST(GatedDeltaRule, SnapshotsAreTheStatesAfterEachToken) {
  const RuleShape shape{.tokens = 6, .k = 32, .v = 64};
  Rule<RecurrentGatedDeltaRuleArgs> rule(shape);
  rule.args.snapshots = rule.memory.output(DType::kF32, {1, shape.tokens, shape.hv, shape.v, shape.k});
  run_with_workspace(rule.args);
  const std::vector<double> snapshots = reference::read(rule.args.snapshots).values;
  for (std::int64_t t = 1; t <= shape.tokens; ++t) {
    Rule<RecurrentGatedDeltaRuleArgs> prefix(shape);
    run_with_workspace(slice(prefix.args, 0, t));
    const std::vector<double> state = reference::read(prefix.args.final_state).values;
    const auto first =
        snapshots.begin() + static_cast<std::ptrdiff_t>((t - 1) * static_cast<std::int64_t>(state.size()));
    EXPECT_TRUE(std::equal(state.begin(), state.end(), first)) << t;
  }
}

// The two head maps differ whenever HV/HK > 1 and HK > 1: a kernel that confuses them cannot pass both.
TEST(GatedDeltaRule, HeadMapsDiffer) {
  const RuleShape shape{.tokens = 20, .k = 32, .v = 32};
  Rule<ChunkGatedDeltaRuleArgs> grouped(shape);
  Rule<ChunkGatedDeltaRuleArgs> tiled(shape);
  tiled.args.head_map = HeadMap::kTiled;
  run_with_workspace(grouped.args);
  run_with_workspace(tiled.args);
  EXPECT_GT(relative_l2(reference::read(tiled.args.o).values, reference::read(grouped.args.o).values), 0.1);
}

// Large activations stay finite: values of 1e5 overflow f16 but not the operation.
TEST(GatedDeltaRule, ValuesOf1e5) {
  const RuleShape shape{.tokens = 70, .k = 32, .v = 32};
  Rule<ChunkGatedDeltaRuleArgs> rule(shape);
  Random random(3);
  rule.args.v = rule.memory.input(DType::kF32, {1, 70, shape.hv, shape.v}, [&] { return 1e5 * random.normal(); });
  run_with_workspace(rule.args);
  const reference::RuleResult exact = reference::recurrence(reference::read_rule(rule.args));
  EXPECT_LT(relative_l2(reference::read(rule.args.o).values, exact.o.values), 2e-5);
}

}  // namespace
}  // namespace thalweg
