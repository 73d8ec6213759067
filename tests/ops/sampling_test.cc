// sample_tokens and logprobs: invalid arguments, the draw's numbers, which the contract fixes, and rows that have no
// probabilities.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/sampling.h"
#include "ops/expect_error.h"

namespace thalweg {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
ConstTensor vector_of(const std::vector<T>& values) {
  const DType dtype = std::is_same_v<T, float> ? DType::kF32 : DType::kI32;
  return {values.data(), dtype, {static_cast<std::int64_t>(values.size())}, kCpu};
}

TEST(BadInput, Sample) {
  using Args = SampleTokensArgs;
  BadInput<Args> bad(
      "N6_V1000_t0,0.7,1_topk0,20,5,1_topp0.8,1,0.95_minp0,0.05_penalty1,1.3,0.9_last64,-1,0,3_C150_"
      "slots_7_-1_0_3_-1_3");
  bad.expect([](Args& a) { a.logits.dtype = DType::kF16; }, "logits", "F32 [N,V]", "F16");
  bad.expect([](Args& a) { a.logits.shape[1] = 0; }, "logits", "1 to 2^31 - 1 tokens", "[6,0]");
  bad.expect([](Args& a) { a.lengths = {}; }, "lengths", "with temperature or history", "nothing");
  bad.expect([](Args& a) { a.lengths.shape[0] = 5; }, "lengths", "I32 [N=6]", "[5]");
  bad.expect([](Args& a) { a.history = {}; }, "history", "with repeat_penalty", "nothing");
  bad.expect([](Args& a) { a.history.rank = 1; }, "history", "I32 [slots,C]", "I32 [8]");
  bad.expect(
      [](Args& a) {
        a.slots = {};
        a.history.shape[0] = 5;
      },
      "history", "N = 6 sequences", "[5,150]");
  bad.expect([](Args& a) { a.temperature.dtype = DType::kI32; }, "temperature", "F32 [N=6]", "I32");
  bad.expect([](Args& a) { a.top_k.dtype = DType::kF32; }, "top_k", "I32 [N=6]", "F32");
  bad.expect([](Args& a) { a.seed.shape[1] = 1; }, "seed", "I32 [N=6,2=2]", "[6,1]");
  const std::vector<std::int32_t> mask(6 * 32, 1);
  const auto mask_of = [&](std::int64_t words) { return ConstTensor(mask.data(), DType::kI32, {6, words}, kCpu); };
  bad.expect([&](Args& a) { a.allowed = mask_of(31); }, "allowed", "I32 [N=6,ceil(V/32)=32]", "[6,31]");
  bad.expect([](Args& a) { a.tokens.shape[0] = 7; }, "tokens", "N=6", "[7]");
  bad.expect([](Args& a) { a.fault.shape[0] = 2; }, "fault", "I32 [1=1]", "[2]");
  bad.expect([](Args& a) { a.tokens.data = const_cast<void*>(a.lengths.data); }, "tokens", "memory of its own",
             "overlaps lengths");
  const std::vector<std::int32_t> no_slot = {7, -1, 8, 3, -1, 3};
  bad.expect([&](Args& a) { a.slots = vector_of(no_slot); }, "slots", "-1 to 7", "8 of sequence 2");
  const std::vector<std::int32_t> beyond = {3, 999, 151, 0, 999, 0};  // absent sequences have no length
  bad.expect([&](Args& a) { a.lengths = vector_of(beyond); }, "lengths", "C = 150", "151 of sequence 2");
  const std::vector<float> wrong(6, -0.5F);
  bad.expect([&](Args& a) { a.temperature = vector_of(wrong); }, "temperature", "0 or more", "-0.5");
  bad.expect([&](Args& a) { a.top_p = vector_of(wrong); }, "top_p", "above 0, at most 1", "-0.5");
  bad.expect([&](Args& a) { a.min_p = vector_of(wrong); }, "min_p", "0 to 1", "-0.5");
  bad.expect([&](Args& a) { a.repeat_penalty = vector_of(wrong); }, "repeat_penalty", "positive", "-0.5");
  const std::vector<std::int32_t> minus_two(6, -2);
  bad.expect([&](Args& a) { a.top_k = vector_of(minus_two); }, "top_k", "0 or more", "-2");
  bad.expect([&](Args& a) { a.repeat_last = vector_of(minus_two); }, "repeat_last", "-1 or more", "-2");
  bad.expect_workspace_errors();
}

TEST(BadInput, Logprobs) {
  using Args = LogprobsArgs;
  BadInput<Args> bad("N3_V1000_K5");
  bad.expect([](Args& a) { a.logits.dtype = DType::kBF16; }, "logits", "F32 [N,V]", "BF16");
  bad.expect([](Args& a) { a.tokens = {}; }, "tokens", "with logprob", "nothing");
  bad.expect([](Args& a) { a.logprob = {}; }, "logprob", "F32 [N=3]", "nothing");
  bad.expect([](Args& a) { a.top_tokens = {}; }, "top_tokens", "I32 [N=3,K]", "nothing");
  bad.expect([](Args& a) { a.top_logprobs = {}; }, "top_logprobs", "F32 [N=3,K=5]", "nothing");
  bad.expect([](Args& a) { a.top_tokens.shape[1] = a.top_logprobs.shape[1] = 0; }, "top_tokens", "1 to V = 1000",
             "[3,0]");
  bad.expect([](Args& a) { a.logits.shape[1] = 4; }, "top_tokens", "1 to V = 4", "[3,5]");
  const std::vector<std::int32_t> beyond = {0, -1, 1000};
  bad.expect([&](Args& a) { a.tokens = vector_of(beyond); }, "tokens", "-1 to 999", "1000 for row 2");
  bad.expect([](Args& a) { a.top_logprobs.data = a.top_tokens.data; }, "top_tokens", "memory of its own",
             "overlaps top_logprobs");
  bad.expect_workspace_errors();
}

// The numbers that every backend draws: SplitMix's finalizer over seed and position.
TEST(Draw, DependsOnSeedAndPosition) {
  EXPECT_EQ(draw(0, 0), 0.8833108082136426);
  EXPECT_EQ(draw(0, 1), 0.43152799704850997);
  EXPECT_NE(draw(1, 0), draw(0, 0));
  EXPECT_NE(draw(std::uint64_t{1} << 32, 0), draw(0, 0));
}

// The likeliest tokens of rows of four logits.
std::vector<std::int32_t> greedy(const std::vector<float>& logits) {
  std::vector<std::int32_t> tokens(logits.size() / 4, -7);
  const auto rows = static_cast<std::int64_t>(tokens.size());
  SampleTokensArgs args;
  args.logits = {logits.data(), DType::kF32, {rows, 4}, kCpu};
  args.tokens = {tokens.data(), DType::kI32, {rows}, kCpu};
  EXPECT_EQ(workspace_size(args, Stream::cpu(1)), 0U);
  run(args, {}, Stream::cpu(1));
  return tokens;
}

TEST(Sample, RefusesRowsWithoutProbabilities) {
  EXPECT_EQ(greedy({0, 1, 1, 0, -kInfinity, -kInfinity, -3, -kInfinity}), (std::vector<std::int32_t>{1, 2}));
  const auto refused = [](const std::vector<float>& logits, std::string_view expected, std::string_view given) {
    expect_error([&] { greedy(logits); }, "sample_tokens", "logits", expected, given);
  };
  refused({0, 0, 0, 0, 1, 2, kNan, 3}, "numbers", "nan for token 2 of sequence 1");
  refused({0, kInfinity, 0, 0, 1, 2, 0, 3}, "numbers", "inf for token 1 of sequence 0");
  refused({-kInfinity, -kInfinity, -kInfinity, -kInfinity}, "a number", "none");
}

TEST(Sample, RefusesAPenaltyThatLeavesNoNumbers) {
  const std::vector<float> logits = {1e30F, 2.0F};
  const std::vector<std::int32_t> history = {1, 0};
  const std::vector<std::int32_t> length = {2};
  const std::vector<float> penalty = {1e-20F};
  std::int32_t token = -7;
  SampleTokensArgs args;
  args.logits = {logits.data(), DType::kF32, {1, 2}, kCpu};
  args.history = {history.data(), DType::kI32, {1, 2}, kCpu};
  args.lengths = vector_of(length);
  args.repeat_penalty = vector_of(penalty);
  args.tokens = {&token, DType::kI32, {1}, kCpu};
  HostWorkspace scratch;
  const Workspace workspace = scratch.reserve(workspace_size(args, Stream::cpu(1)));
  expect_error([&] { run(args, workspace, Stream::cpu(1)); }, "sample_tokens", "logits", "numbers", "inf for token 0");
  EXPECT_EQ(token, -7);
}

TEST(Sample, RefusesAMaskThatLeavesNoToken) {
  const std::vector<float> logits = {3, -kInfinity, 1, 2};
  const auto sample = [&](std::int32_t mask) {
    std::int32_t token = -7;
    SampleTokensArgs args;
    args.logits = {logits.data(), DType::kF32, {1, 4}, kCpu};
    args.tokens = {&token, DType::kI32, {1}, kCpu};
    args.allowed = {&mask, DType::kI32, {1, 1}, kCpu};
    HostWorkspace scratch;
    run(args, scratch.reserve(workspace_size(args, Stream::cpu(1))), Stream::cpu(1));
    return token;
  };
  EXPECT_EQ(sample(~0), 0);
  EXPECT_EQ(sample(~1), 3);
  EXPECT_EQ(sample(6), 2);
  for (const std::int32_t mask : {0, 2, ~0xF}) {
    expect_error([&] { sample(mask); }, "sample_tokens", "allowed", "a token whose logit is above -infinity", "none");
  }
}

TEST(Logprobs, AreNanWhereThereAreNoProbabilities) {
  const std::vector<float> logits = {0,          kNan,       0,          kInfinity,  -kInfinity, -kInfinity,
                                     -kInfinity, -kInfinity, -kInfinity, -kInfinity, 3,          -kInfinity};
  const std::vector<std::int32_t> tokens = {0, 1, 3};
  std::vector<float> logprob(3, -7);
  std::vector<std::int32_t> top_tokens(6, -7);
  std::vector<float> top_logprobs(6, -7);
  LogprobsArgs args;
  args.logits = {logits.data(), DType::kF32, {3, 4}, kCpu};
  args.tokens = vector_of(tokens);
  args.logprob = {logprob.data(), DType::kF32, {3}, kCpu};
  args.top_tokens = {top_tokens.data(), DType::kI32, {3, 2}, kCpu};
  args.top_logprobs = {top_logprobs.data(), DType::kF32, {3, 2}, kCpu};
  HostWorkspace scratch;
  run(args, scratch.reserve(workspace_size(args, Stream::cpu(1))), Stream::cpu(1));
  EXPECT_TRUE(std::isnan(logprob[0]) && std::isnan(logprob[1]));
  EXPECT_TRUE(std::isnan(top_logprobs[0]) && std::isnan(top_logprobs[3]));
  EXPECT_EQ(top_tokens, (std::vector<std::int32_t>{-1, -1, -1, -1, 2, 0}));
  // A token of probability 0 is a valid one.
  EXPECT_EQ(logprob[2], -kInfinity);
  EXPECT_EQ(top_logprobs[4], 0.0F);
  EXPECT_EQ(top_logprobs[5], -kInfinity);
}

}  // namespace
}  // namespace thalweg
