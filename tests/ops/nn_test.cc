// Properties of the dense operations across several calls, and small results by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cases/case.h"
#include "core/float16.h"
#include "cpu/vector.h"
#include "ops/run_with_workspace.h"
#include "thalweg/backend.h"
#include "thalweg/nn.h"

namespace thalweg {
namespace {

using cases::Random;
using Floats = std::vector<float>;

constexpr DType kF32 = DType::kF32;

Floats random_floats(std::int64_t count, Random& random) {
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

// ---- causal_conv1d

struct Convolution {
  static constexpr std::int64_t kTokens = 11;
  static constexpr std::int64_t kChannels = 21;
  static constexpr std::int64_t kTaps = 4;

  Random random{5};
  Floats x = random_floats(kTokens * kChannels, random);
  Floats weight = random_floats(kChannels * kTaps, random);
  Floats bias = random_floats(kChannels, random);
  Floats initial = random_floats(kChannels * (kTaps - 1), random);

  // Tokens begin..end-1 in one call, the state in place.
  template <class Args>
  void set(Args& args, std::int64_t begin, std::int64_t end, Floats& y) {
    args.x = ConstTensor(x.data() + begin * kChannels, kF32, {1, end - begin, kChannels}, kCpu);
    args.weight = ConstTensor(weight.data(), kF32, {kChannels, kTaps}, kCpu);
    args.bias = ConstTensor(bias.data(), kF32, {kChannels}, kCpu);
    args.y = Tensor(y.data() + begin * kChannels, kF32, {1, end - begin, kChannels}, kCpu);
    args.activation = Activation::kSilu;
  }
  void prefill(std::int64_t begin, std::int64_t end, Floats& state, Floats& y) {
    CausalConv1dArgs args;
    set(args, begin, end, y);
    args.final_state = Tensor(state.data(), kF32, {1, kChannels, kTaps - 1}, kCpu);
    args.initial_state = args.final_state;
    run_with_workspace(args);
  }
  void update(std::int64_t begin, std::int64_t end, Floats& state, Floats& y) {
    CausalConv1dUpdateArgs args;
    set(args, begin, end, y);
    args.conv_state = Tensor(state.data(), kF32, {1, kChannels, kTaps - 1}, kCpu);
    run_with_workspace(args);
  }
};

TEST(CausalConv1d, SplitAnywhereEqualsTheWhole) {
  Convolution conv;
  Floats whole_state = conv.initial;
  Floats whole(conv.x.size());
  conv.prefill(0, Convolution::kTokens, whole_state, whole);
  for (std::int64_t split = 0; split <= Convolution::kTokens; ++split) {
    Floats state = conv.initial;
    Floats y(conv.x.size(), -7.0F);
    conv.prefill(0, split, state, y);
    conv.prefill(split, Convolution::kTokens, state, y);
    EXPECT_EQ(y, whole) << "split at " << split;
    EXPECT_EQ(state, whole_state) << "split at " << split;
  }
}

TEST(CausalConv1d, PrefillThenUpdatesEqualsTheWhole) {
  Convolution conv;
  Floats whole_state = conv.initial;
  Floats whole(conv.x.size());
  conv.prefill(0, Convolution::kTokens, whole_state, whole);
  for (const std::int64_t prefilled : {0, 1, 2, 3, 6, 11}) {
    for (const std::int64_t step : {1, 2, 5}) {
      Floats state = conv.initial;
      Floats y(conv.x.size(), -7.0F);
      conv.prefill(0, prefilled, state, y);
      for (std::int64_t t = prefilled; t < Convolution::kTokens; t += step) {
        conv.update(t, std::min(Convolution::kTokens, t + step), state, y);
      }
      EXPECT_EQ(y, whole) << prefilled << " tokens, then " << step << " at a time";
      EXPECT_EQ(state, whole_state) << prefilled << " tokens, then " << step << " at a time";
    }
  }
}

TEST(CausalConv1d, NewestTapIsTheLast) {
  const Floats x = {1.0F, 10.0F, 100.0F};
  const Floats weight = {2.0F, 3.0F};
  Floats state = {5.0F};
  Floats y(3);
  CausalConv1dArgs args;
  args.x = ConstTensor(x.data(), kF32, {1, 3, 1}, kCpu);
  args.weight = ConstTensor(weight.data(), kF32, {1, 2}, kCpu);
  args.final_state = Tensor(state.data(), kF32, {1, 1, 1}, kCpu);
  args.initial_state = args.final_state;
  args.y = Tensor(y.data(), kF32, {1, 3, 1}, kCpu);
  run_with_workspace(args);
  EXPECT_EQ(y, (Floats{2 * 5 + 3 * 1, 2 * 1 + 3 * 10, 2 * 10 + 3 * 100}));
  EXPECT_EQ(state, Floats{100.0F});
}

// ---- norms

TEST(RmsNorm, WeightPlusOneIsTheWeightOneLarger) {
  Random random(3);
  const Floats x = random_floats(3 * 40, random);
  Floats weight(40);
  Floats larger(40);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = static_cast<float>(i) / 8.0F - 2.0F;
    larger[i] = weight[i] + 1.0F;
  }
  Floats y(x.size());
  Floats plain(x.size());
  RmsNormArgs args;
  args.x = ConstTensor(x.data(), kF32, {3, 40}, kCpu);
  args.weight = ConstTensor(weight.data(), kF32, {40}, kCpu);
  args.y = Tensor(y.data(), kF32, {3, 40}, kCpu);
  args.weight_plus_one = true;
  run_with_workspace(args);
  args.weight = ConstTensor(larger.data(), kF32, {40}, kCpu);
  args.y = Tensor(plain.data(), kF32, {3, 40}, kCpu);
  args.weight_plus_one = false;
  run_with_workspace(args);
  EXPECT_EQ(y, plain);
}

// ---- rope

Floats turned(const Floats& x, std::int32_t position) {
  Floats y(x.size());
  const auto width = static_cast<std::int64_t>(x.size());
  RopeArgs args;
  args.x = ConstTensor(x.data(), kF32, {1, 1, width}, kCpu);
  args.positions = ConstTensor(&position, DType::kI32, {1}, kCpu);
  args.y = Tensor(y.data(), kF32, {1, 1, width}, kCpu);
  args.rotary_dim = static_cast<int>(width) / 2;
  args.theta = 1e4F;
  run_with_workspace(args);
  return y;
}

double dot(const Floats& a, const Floats& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

TEST(Rope, ProductsDependOnTheDistanceAlone) {
  Random random(8);
  const Floats q = random_floats(64, random);
  const Floats k = random_floats(64, random);
  for (const std::int32_t distance : {0, 1, 17, 1000}) {
    const double near = dot(turned(q, distance), turned(k, 0));
    for (const std::int32_t at : {1, 4096, 1'000'000}) {
      EXPECT_NEAR(dot(turned(q, at + distance), turned(k, at)), near, 1e-4) << distance << " from " << at;
    }
    EXPECT_NEAR(dot(turned(q, distance), turned(q, distance)), dot(q, q), 1e-4);
  }
  EXPECT_NE(turned(q, 5), q);
  EXPECT_EQ(turned(q, 0), q);
}

TEST(Rope, PairsAreHalvesApart) {
  // theta^0 = 1: the first pair is (0, rotary_dim / 2), rotated by the position in radians.
  const Floats x = {1.0F, 0.0F, 0.0F, 0.0F, 5.0F, 6.0F, 7.0F, 8.0F};
  const Floats y = turned(x, 1);
  EXPECT_FLOAT_EQ(y[0], std::cos(1.0F));
  EXPECT_FLOAT_EQ(y[2], std::sin(1.0F));
  EXPECT_EQ(Floats(y.begin() + 4, y.end()), Floats(x.begin() + 4, x.end()));
}

TEST(Rope, TakesFrequenciesAndAScale) {
  // The second pair turns by 2 radians at position 4, and both grow by 3; theta would have it turn by 0.04.
  const Floats x = {1.0F, 0.0F, 0.0F, 1.0F, 5.0F, 6.0F};
  const Floats frequencies = {0.25F, 0.5F};
  const std::int32_t position = 4;
  Floats y(x.size());
  RopeArgs args;
  args.x = ConstTensor(x.data(), kF32, {1, 1, 6}, kCpu);
  args.positions = ConstTensor(&position, DType::kI32, {1}, kCpu);
  args.frequencies = ConstTensor(frequencies.data(), kF32, {2}, kCpu);
  args.y = Tensor(y.data(), kF32, {1, 1, 6}, kCpu);
  args.rotary_dim = 4;
  args.theta = 1e4F;
  args.scale = 3.0F;
  run_with_workspace(args);
  EXPECT_FLOAT_EQ(y[0], 3.0F * std::cos(1.0F));
  EXPECT_FLOAT_EQ(y[1], -3.0F * std::sin(2.0F));
  EXPECT_FLOAT_EQ(y[2], 3.0F * std::sin(1.0F));
  EXPECT_FLOAT_EQ(y[3], 3.0F * std::cos(2.0F));
  EXPECT_EQ(Floats(y.begin() + 4, y.end()), Floats(x.begin() + 4, x.end()));
}

// ---- attention

struct Attended {
  static constexpr std::int64_t kTokens = 90;
  static constexpr std::int64_t kHeads = 4;
  static constexpr std::int64_t kKeyHeads = 2;
  static constexpr std::int64_t kWidth = 24;
  static constexpr std::int64_t kCapacity = 700;  // several spans when tokens are few

  Random random{6};
  Floats q = random_floats(kTokens * kHeads * kWidth, random);
  Floats k = random_floats(kCapacity * kKeyHeads * kWidth, random);
  Floats v = random_floats(kCapacity * kKeyHeads * kWidth, random);

  // Outputs of tokens begin..end-1 in one call, with `before` tokens cached ahead of token 0.
  void attend(std::int32_t before, std::int32_t begin, std::int32_t end, Floats& o) const {
    const std::int32_t bounds[] = {0, end - begin};
    const std::int32_t length = before + end;
    AttentionArgs args;
    args.q = ConstTensor(q.data() + begin * kHeads * kWidth, kF32, {end - begin, kHeads, kWidth}, kCpu);
    args.k_cache = ConstTensor(k.data(), kF32, {1, kCapacity, kKeyHeads, kWidth}, kCpu);
    args.v_cache = ConstTensor(v.data(), kF32, {1, kCapacity, kKeyHeads, kWidth}, kCpu);
    args.cu_seqlens = ConstTensor(bounds, DType::kI32, {2}, kCpu);
    args.lengths = ConstTensor(&length, DType::kI32, {1}, kCpu);
    args.o = Tensor(o.data() + begin * kHeads * kWidth, kF32, {end - begin, kHeads, kWidth}, kCpu);
    run_with_workspace(args);
  }
};

double largest_difference(const Floats& a, const Floats& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

TEST(Attention, DecodeStepsEqualPrefill) {
  const Attended attended;
  for (const std::int32_t before : {0, 500}) {
    Floats whole(attended.q.size());
    attended.attend(before, 0, Attended::kTokens, whole);
    for (const std::int32_t step : {1, 3, 40}) {
      Floats steps(attended.q.size(), -7.0F);
      for (std::int32_t t = 0; t < Attended::kTokens; t += step) {
        attended.attend(before, t, std::min<std::int32_t>(Attended::kTokens, t + step), steps);
      }
      EXPECT_LT(largest_difference(steps, whole), 2e-6) << before << " cached, " << step << " at a time";
    }
  }
}

TEST(Attention, OneVisibleTokenGivesItsValue) {
  const Attended attended;
  Floats o(attended.q.size());
  attended.attend(0, 0, 1, o);
  for (std::int64_t h = 0; h < Attended::kHeads; ++h) {
    for (std::int64_t d = 0; d < Attended::kWidth; ++d) {
      EXPECT_FLOAT_EQ(o[static_cast<std::size_t>(h * Attended::kWidth + d)],
                      attended.v[static_cast<std::size_t>(h / 2 * Attended::kWidth + d)]);
    }
  }
}

// A weight of 0 would not mask a NaN: masked values must not be multiplied at all.
TEST(Attention, LaterTokensDoNotReachEarlierOnes) {
  Attended attended;
  const std::int64_t row = Attended::kKeyHeads * Attended::kWidth;
  for (const std::int64_t poisoned : {0, 1, 30, 63, 64, 89}) {
    Attended other = attended;
    for (std::int64_t i = poisoned * row; i < Attended::kCapacity * row; ++i) {
      other.k[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
      other.v[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
    }
    Floats expected(attended.q.size());
    Floats actual(attended.q.size());
    attended.attend(0, 0, Attended::kTokens, expected);
    other.attend(0, 0, Attended::kTokens, actual);
    const auto before = static_cast<std::ptrdiff_t>(poisoned * Attended::kHeads * Attended::kWidth);
    EXPECT_EQ(Floats(actual.begin(), actual.begin() + before), Floats(expected.begin(), expected.begin() + before))
        << "NaN from position " << poisoned << " on";
    EXPECT_TRUE(std::isnan(actual[static_cast<std::size_t>(before)]));
  }
}

// A decoder's tokens must depend neither on the rest of the batch nor on the capacity of the cache: a sequence's rows
// have the same bits in a cache of exactly its length, in a larger one, and in batches below and above the threshold of
// the kernel's two methods for long caches.
TEST(Attention, NeitherCapacityNorCompanyMovesABit) {
  constexpr std::int64_t kHeads = 4;
  constexpr std::int64_t kKeyHeads = 2;
  constexpr std::int64_t kWidth = 24;
  constexpr std::int64_t kRow = kKeyHeads * kWidth;
  cases::Random random(5);
  const auto normals = [&](std::int64_t count) {
    Floats values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(random.normal());
    return values;
  };
  for (const auto& [fresh, length] : {std::pair{1, 1}, {1, 512}, {1, 513}, {3, 1500}, {40, 1500}, {7, 2048}}) {
    const Floats q = normals(fresh * kHeads * kWidth);
    const Floats k = normals(length * kRow);
    const Floats v = normals(length * kRow);
    Floats alone;
    for (const auto& [capacity, others] : {std::pair{length, 0}, {length + 1, 0}, {5000, 0}, {length, 3}, {2600, 90}}) {
      // The sequence, and after it one of `others` tokens on a prefix of its cache.
      const std::int64_t tokens = fresh + others;
      const std::int64_t slots = others > 0 ? 2 : 1;
      Floats queries = q;
      const Floats more = normals(others * kHeads * kWidth);
      queries.insert(queries.end(), more.begin(), more.end());
      Floats keys(static_cast<std::size_t>(slots * capacity * kRow));
      Floats values = keys;
      for (std::int64_t slot = 0; slot < slots; ++slot) {
        std::copy(k.begin(), k.end(), keys.begin() + slot * capacity * kRow);
        std::copy(v.begin(), v.end(), values.begin() + slot * capacity * kRow);
      }
      const std::int32_t bounds[] = {0, fresh, static_cast<std::int32_t>(tokens)};
      const std::int32_t lengths[] = {length, std::max(others, std::min<int>(length, capacity))};
      Floats o(queries.size());
      AttentionArgs args;
      args.q = ConstTensor(queries.data(), DType::kF32, {tokens, kHeads, kWidth}, kCpu);
      args.k_cache = ConstTensor(keys.data(), DType::kF32, {slots, capacity, kKeyHeads, kWidth}, kCpu);
      args.v_cache = ConstTensor(values.data(), DType::kF32, {slots, capacity, kKeyHeads, kWidth}, kCpu);
      args.cu_seqlens = ConstTensor(bounds, DType::kI32, {slots + 1}, kCpu);
      args.lengths = ConstTensor(lengths, DType::kI32, {slots}, kCpu);
      args.o = Tensor(o.data(), DType::kF32, {tokens, kHeads, kWidth}, kCpu);
      if (others > length) continue;  // its tokens would not fit
      run_with_workspace(args);
      o.resize(q.size());
      if (alone.empty()) {
        alone = o;
        continue;
      }
      EXPECT_TRUE(o == alone) << fresh << " of " << length << " tokens in a cache of " << capacity << " with " << others
                              << " tokens of another sequence";
    }
  }
}

// ---- stores

// Every f16, its neighbors and the ties between: every instruction set rounds them alike, NaN included.
TEST(Stores, F16IsRoundedAlikeByEveryInstructionSet) {
  std::vector<float> values;
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = std::bit_cast<std::uint32_t>(f16_to_f32(static_cast<std::uint16_t>(half)));
    for (const std::uint32_t change : {0U, 1U, 0xFFFFFFFFU, 0x1000U, 0x1001U, 0xFFFU}) {
      values.push_back(std::bit_cast<float>(bits + change));
    }
  }
  for (const std::string& set : cpu::instruction_sets()) {
    ASSERT_TRUE(cpu::select_instruction_set(set));
    std::vector<std::uint16_t> stored(values.size());
    cpu::vector_ops().store(DType::kF16, values.data(), static_cast<std::int64_t>(values.size()), stored.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) wrong += stored[i] != f32_to_f16(values[i]) ? 1 : 0;
    EXPECT_EQ(wrong, 0U) << set;
  }
  cpu::select_instruction_set("");
}

// ---- instruction sets

// Also where the public API lists the backends, as a program does that prints what it runs on.
TEST(InstructionSets, AskingForThemKeepsTheSelection) {
  for (const std::string& set : cpu::instruction_sets()) {
    ASSERT_TRUE(cpu::select_instruction_set(set));
    const cpu::VectorOps* selected = &cpu::vector_ops();
    EXPECT_EQ(backends().front().instruction_sets, cpu::instruction_sets());
    EXPECT_EQ(&cpu::vector_ops(), selected) << set;
  }
  EXPECT_FALSE(cpu::select_instruction_set("none"));
  cpu::select_instruction_set("");
}

// ---- all of them

// The sizes of a model, which make more tasks than the table's cases.
TEST(NnThreads, ModelSizesGiveTheSameBits) {
  const std::set<std::string_view> operations = {
      CausalConv1dArgs::kName, CausalConv1dUpdateArgs::kName, RmsNormArgs::kName,   GatedRmsNormArgs::kName,
      RopeArgs::kName,         AttentionArgs::kName,          EmbeddingArgs::kName, SwigluArgs::kName,
      StoreKvArgs::kName,      SplitQkvzArgs::kName,          AddArgs::kName};
  int compared = 0;
  for (const cases::Case& test : cases::all_cases()) {
    if (!test.bench || operations.count(test.operation) == 0) continue;
    const auto problem = test.make(4);
    std::vector<std::vector<double>> first;
    for (const int threads : {1, 2, 5}) {
      const cases::Verdict verdict = cases::verify(*problem, Stream::cpu(threads));
      ASSERT_TRUE(verdict.ok) << test.operation << " " << test.name << " " << verdict.problem;
      std::vector<std::vector<double>> outputs;
      for (const cases::Expected& expected : problem->expected()) {
        outputs.push_back(reference::read(expected.actual).values);
      }
      if (threads == 1) {
        first = std::move(outputs);
      } else {
        EXPECT_TRUE(outputs == first) << test.operation << " " << test.name << " with " << threads << " threads";
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 22);
}

}  // namespace
}  // namespace thalweg
