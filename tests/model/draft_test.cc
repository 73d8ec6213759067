// Drafts: where they come from, that verifying them gives the bits of single steps, and that a text does not change.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "decode/drafter.h"
#include "decode/lookup.h"
#include "model/support.h"

namespace thalweg::model {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens looked_up(const Tokens& text, std::size_t most) {
  decode::Lookup lookup;
  lookup.add(text);
  Tokens drafts;
  lookup.propose(most, drafts);
  return drafts;
}

TEST(Lookup, GoesOnAsAfterTheLongestMatch) {
  // 1 2 3 came twice; the earlier time after 9, as now.
  EXPECT_EQ(looked_up({9, 1, 2, 3, 4, 5, 8, 1, 2, 3, 6, 7, 9, 1, 2, 3}, 2), (Tokens{4, 5}));
  // Of equal matches the latest.
  EXPECT_EQ(looked_up({7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3}, 1), (Tokens{5}));
  EXPECT_EQ(looked_up({1, 2, 3, 4, 2, 3}, 4), Tokens());  // two tokens are no match
  EXPECT_EQ(looked_up({1, 2, 3, 1, 2, 3}, 0), Tokens());
  EXPECT_EQ(looked_up({1, 2}, 4), Tokens());
  EXPECT_EQ(looked_up({}, 4), Tokens());
}

TEST(Lookup, RepeatsBeyondTheEnd) {
  EXPECT_EQ(looked_up({1, 2, 3, 1, 2, 3}, 7), (Tokens{1, 2, 3, 1, 2, 3, 1}));
  EXPECT_EQ(looked_up({4, 4, 4, 4}, 3), (Tokens{4, 4, 4}));
}

TEST(Lookup, ForgetsWhatIsFarBack) {
  decode::Lookup lookup;
  lookup.add(Tokens{1, 2, 3, 4});
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(2 * decode::Lookup::kWindow); ++i) lookup.add(Tokens{10 + i});
  lookup.add(Tokens{1, 2, 3});
  Tokens drafts;
  lookup.propose(1, drafts);
  EXPECT_TRUE(drafts.empty());
  const auto last = static_cast<std::int32_t>(10 + 2 * decode::Lookup::kWindow - 1);
  lookup.add(Tokens{last - 5, last - 4, last - 3});
  lookup.propose(2, drafts);
  EXPECT_EQ(drafts, (Tokens{last - 2, last - 1}));
}

// What auto does where drafts are right with a probability, and cost a part of a round each.
double speed_of_auto(double right, double cost_of_draft, std::int64_t& drafted) {
  decode::RoundCosts costs;
  Tokens text;
  for (int i = 0; i < 64; ++i) text.push_back(i % 4);
  decode::Drafter drafter(DraftMode::kAuto, 8, text);
  std::uint64_t random = 7;
  const auto draw = [&] {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(random >> 11U) / 9007199254740992.0;
  };
  double seconds = 0;
  std::int64_t tokens = 0;
  drafted = 0;
  for (int round = 0; round < 4000; ++round) {
    drafter.look_up(drafter.wanted(100, 1, costs));
    const auto drafts = static_cast<std::int64_t>(drafter.drafts().size());
    const double time = 1 + cost_of_draft * static_cast<double>(drafts);
    std::int64_t accepted = 0;
    while (accepted < drafts && draw() < right) ++accepted;
    costs.add(1, drafts, time);
    drafter.judge(accepted, 1, costs);
    seconds += time;
    tokens += 1 + accepted;
    drafted += drafts;
  }
  return static_cast<double>(tokens) / seconds;
}

TEST(Drafter, AutoDraftsWhereThatPays) {
  std::int64_t drafted = 0;
  EXPECT_GT(speed_of_auto(0.9, 0.1, drafted), 2.5);  // 3.4 with 8 drafts, the best number
  EXPECT_GT(speed_of_auto(0.5, 0.2, drafted), 1.15);
}

TEST(Drafter, AutoLosesLittleWhereItDoesNot) {
  std::int64_t drafted = 0;
  for (const double cost : {0.3, 0.6, 1.0}) {
    EXPECT_GT(speed_of_auto(0.0, cost, drafted), 0.97) << cost;
    EXPECT_GT(drafted, 0) << "it never looks whether that has changed";
    EXPECT_GT(speed_of_auto(0.2, cost, drafted), 0.97) << cost;
  }
}

// A first draft that is wrong costs nearly a round, which 2 % of the time make up for after 40 rounds; the text then
// repeats itself.
TEST(Drafter, AutoLearnsFromTheTextWithoutDrafts) {
  decode::RoundCosts costs;
  for (int i = 0; i < 3; ++i) costs.add(1, 0, 1.0);
  for (int i = 0; i < 20; ++i) costs.add(1, 1, 1.9);
  for (int i = 0; i < 20; ++i) costs.add(1, 4, 2.5);
  Tokens text;
  for (int i = 0; i < 64; ++i) text.push_back(i % 4);
  decode::Drafter drafter(DraftMode::kAuto, 8, text);
  const std::int64_t first = drafter.wanted(100, 1, costs);
  ASSERT_GT(first, 0);
  drafter.look_up(first);
  drafter.judge(0, 1, costs);
  int rounds = 0;
  for (; rounds < 40 && drafter.wanted(100, 1, costs) == 0; ++rounds) {
    drafter.look_up(0);
    drafter.judge(0, 1, costs);
    drafter.add(Tokens{rounds % 4});
  }
  EXPECT_GT(rounds, 0);
  EXPECT_LT(rounds, 20);
}

// A layer that is right three times of four, over text that repeats itself from some point on.
TEST(Drafter, AutoTakesTheTextWhereItKnowsBetterThanTheLayer) {
  std::mt19937 random(5);
  decode::RoundCosts costs;
  for (int i = 0; i < 3; ++i) costs.add(1, 0, 1.0);
  for (int i = 0; i < 20; ++i) costs.add(1, 2, 1.2);
  std::vector<std::int32_t> text;
  for (int i = 0; i < 600; ++i) text.push_back(static_cast<std::int32_t>(random() % 50));
  const std::vector<std::int32_t> repeated(text.begin(), text.begin() + 300);
  text.insert(text.end(), repeated.begin(), repeated.end());
  decode::Drafter drafter(DraftMode::kAuto, 4, std::span(text).first(1));
  int by_layer[2] = {};
  int rounds[2] = {};
  for (std::size_t at = 1; at + 8 < text.size();) {
    const bool repeats = at > 620;
    const std::int64_t most = drafter.wanted(100, 1, costs, true);
    std::vector<std::int32_t> drafts;
    if (drafter.by_layer()) {
      for (std::int64_t i = 0; i < most; ++i) {
        drafts.push_back(random() % 4 == 0 ? -1 : text[at + static_cast<std::size_t>(i)]);
      }
      drafter.take(drafts);
    } else {
      drafter.look_up(most);
    }
    rounds[repeats] += 1;
    by_layer[repeats] += drafter.by_layer() ? 1 : 0;
    std::size_t accepted = 0;
    while (accepted < drafter.drafts().size() && drafter.drafts()[accepted] == text[at + accepted]) ++accepted;
    const std::span<const std::int32_t> taken = std::span(text).subspan(at, accepted + 1);
    drafter.judge(static_cast<std::int64_t>(accepted), 1, costs);
    drafter.add(taken);
    at += taken.size();
  }
  EXPECT_GT(by_layer[0], 8 * rounds[0] / 10);
  EXPECT_LT(by_layer[1], 5 * rounds[1] / 10);
}

TEST(RoundCosts, FirstDraftMayAddMoreThanOthers) {
  decode::RoundCosts costs;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(costs.due(2));
    costs.add(2, 0, i == 0 ? 9.0 : 1.0);  // the first round of all is slow
  }
  EXPECT_FALSE(costs.due(2));
  EXPECT_TRUE(costs.due(1));
  EXPECT_DOUBLE_EQ(costs.plain(2), 1.0);
  for (int i = 0; i < 40; ++i) costs.add(2, i % 2 == 0 ? 2 : 8, i % 2 == 0 ? 1.5 : 1.8);
  // 0.4 and 0.05 a draft; a sequence's share of two is half of it.
  EXPECT_NEAR(costs.drafts(1, 2), 0.25, 1e-9);
  EXPECT_NEAR(costs.drafts(4, 2), 0.4, 1e-9);
  EXPECT_NEAR(costs.drafts(3, 2), 0.35, 1e-9);
}

TEST(RoundCosts, DisturbedRoundsCountForLittle) {
  decode::RoundCosts costs;
  for (int i = 0; i < 3; ++i) costs.add(1, 0, 1.0);
  costs.add(1, 2, 1.4);
  costs.add(1, 2, 100.0);
  EXPECT_LT(costs.drafts(2, 1), 1.5);
  costs.add(1, 0, 100.0);
  EXPECT_LT(costs.plain(1), 1.2);
  costs.add(1, 0, 3.0, false);  // which replays drafts
  EXPECT_LT(costs.plain(1), 1.2);
  for (int i = 0; i < 128; ++i) costs.add(1, 2, 1.4);
  EXPECT_TRUE(costs.due(1)) << "what a round costs without drafts is an old measurement";
  costs.add(1, 0, 1.0);
  EXPECT_FALSE(costs.due(1));
}

struct File {
  explicit File(const std::string& architecture = "qwen35moe", DType dtype = DType::kF32, int vocabulary = 5) {
    spec.architecture = architecture;
    spec.vocabulary = vocabulary;
    if (architecture == "qwen35") spec.experts = 0;
    TinyModel(spec).write_gguf(path, dtype);
  }
  TinySpec spec;
  TempFolder folder;
  std::string path = folder / "tiny.gguf";
};

// A text that repeats itself, with differences. Few different tokens make many matches, some of them right.
Tokens repetitive(int vocabulary) {
  Tokens text = random_tokens(24, vocabulary, 5);
  for (int i = 0; i < 4; ++i) {
    Tokens again(text.begin(), text.begin() + 24);
    again[5 * static_cast<std::size_t>(i) + 3] = i;
    text.insert(text.end(), again.begin(), again.end());
  }
  return text;
}

struct Text {
  Tokens tokens;
  Logits logits;  // each token was chosen from
  std::vector<float> last;
  DraftCounts counts;
};

// As many tokens as wanted: an end token is one like others. `stop`: after so many the caller stops.
Text decode(Model& model, Sequence& sequence, const Sampling& sampling, std::int64_t most, std::size_t stop = 10000) {
  Text text;
  Sequence* const sequences[] = {&sequence};
  model.decode(
      sequences, std::span(&sampling, 1), most,
      [&](std::span<const std::int32_t> tokens) {
        text.tokens.push_back(tokens.front());
        return text.tokens.size() < stop;
      },
      [&](std::size_t, std::int32_t, std::span<const float> logits) { text.logits.push_back(copy(logits)); }, true);
  text.last = copy(sequence.logits());
  text.counts = model.draft_counts();
  return text;
}

Text decode(const std::string& path, ModelOptions options, DraftMode draft, const Sampling& sampling,
            std::int64_t tokens) {
  options.draft = draft;
  Model model = Model::load(path, options);
  Sequence sequence = model.start();
  const Tokens prompt = repetitive(static_cast<int>(model.info().vocabulary));
  model.prefill(sequence, prompt);
  Text text = decode(model, sequence, sampling, tokens);
  EXPECT_EQ(sequence.tokens().size(), prompt.size() + text.tokens.size());
  return text;
}

// Some drafts must be right and some wrong, or nothing is tested.
void expect_same_text(const std::string& path, const ModelOptions& options, const Sampling& sampling) {
  const Text plain = decode(path, options, DraftMode::kOff, sampling, 400);
  const Text drafted = decode(path, options, DraftMode::kLookup, sampling, 400);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  ASSERT_EQ(drafted.logits.size(), plain.logits.size());
  for (std::size_t i = 0; i < plain.logits.size(); ++i) {
    ASSERT_TRUE(same_bits(drafted.logits[i], plain.logits[i])) << "token " << i;
  }
  EXPECT_TRUE(same_bits(drafted.last, plain.last));
  EXPECT_EQ(plain.counts.drafts, 0);
  EXPECT_GT(drafted.counts.accepted, 0);
  EXPECT_GT(drafted.counts.drafts, drafted.counts.accepted);
  EXPECT_EQ(drafted.counts.runs + drafted.counts.accepted, static_cast<std::int64_t>(drafted.tokens.size()));
}

TEST(Drafts, VerificationGivesTheBitsOfSingleSteps) {
  const OnAllThreads everywhere;
  Sampling hot;
  hot.temperature = 0.2F;
  for (const char* architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    for (const DType dtype : {DType::kF32, DType::kQ8_0}) {
      SCOPED_TRACE(std::string(architecture) + " " + std::string(dtype_name(dtype)));
      const File file(architecture, dtype);
      ModelOptions options = precise();
      options.exact = dtype == DType::kF32;
      for (const DType cache : {options.exact ? DType::kF32 : DType::kF16, DType::kQ8_0}) {
        options.kv_dtype = cache;
        expect_same_text(file.path, options, hot);
      }
    }
  }
}

TEST(Drafts, GreedyTextAndPenaltiesStayTheSame) {
  const File file;
  Sampling sampling;
  expect_same_text(file.path, precise(), sampling);
  sampling.temperature = 0.3F;
  sampling.repeat_penalty = 1.02F;
  sampling.top_k = 20;
  sampling.seed = 3;
  expect_same_text(file.path, precise(), sampling);
}

ModelOptions drafting() {
  ModelOptions options = precise();
  options.draft = DraftMode::kLookup;
  return options;
}

// A prompt and what the model makes of it.
Tokens continued_text(Model& model) {
  Sequence sequence = model.start();
  model.prefill(sequence, repetitive(static_cast<int>(model.info().vocabulary)));
  decode(model, sequence, {}, 250);
  return {sequence.tokens().begin(), sequence.tokens().end()};
}

// Wherever the caller or the limit stops, the sequence holds what was reported, and goes on as one without drafts.
TEST(Drafts, StopAtAnyToken) {
  const File file;
  Model model = Model::load(file.path, drafting());
  Model plain = Model::load(file.path, precise());
  const Tokens prompt = continued_text(plain);
  const std::string saved = file.folder / "session";
  const std::int64_t before = model.draft_counts().accepted;
  for (const bool by_limit : {false, true}) {
    for (std::size_t stop = 1; stop <= 20; ++stop) {
      SCOPED_TRACE(stop);
      Sequence sequence = model.start();
      model.prefill(sequence, prompt);
      const Text text =
          decode(model, sequence, {}, by_limit ? static_cast<std::int64_t>(stop) : 100, by_limit ? 10000 : stop);
      ASSERT_EQ(text.tokens.size(), stop);
      Sequence other = plain.start();
      plain.prefill(other, prompt);
      ASSERT_EQ(decode(plain, other, {}, static_cast<std::int64_t>(stop)).tokens, text.tokens);
      ASSERT_TRUE(same_bits(sequence.logits(), other.logits()));
      ASSERT_TRUE(
          std::equal(sequence.tokens().begin(), sequence.tokens().end(), other.tokens().begin(), other.tokens().end()));
      // A file, a step, a prefill and further drafts find the state where the tokens are.
      sequence.save(saved);
      model.step(sequence, 3);
      plain.step(other, 3);
      ASSERT_TRUE(same_bits(sequence.logits(), other.logits()));
      sequence.restore(saved);
      model.step(sequence, 3);
      const Tokens more = {4, 1, 2};
      model.prefill(sequence, more);
      plain.prefill(other, more);
      ASSERT_TRUE(same_bits(sequence.logits(), other.logits()));
      ASSERT_EQ(decode(model, sequence, {}, 10).tokens, decode(plain, other, {}, 10).tokens);
    }
  }
  EXPECT_GT(model.draft_counts().accepted - before, 40) << "hardly a stop falls into the middle of a round";
}

TEST(Drafts, FillTheContextAndNoMore) {
  const File file;
  Model plain = Model::load(file.path, precise());
  const Tokens prompt = continued_text(plain);
  ModelOptions options = drafting();
  options.context = static_cast<std::int64_t>(prompt.size()) + 30;
  Model model = Model::load(file.path, options);
  Sequence sequence = model.start();
  model.prefill(sequence, prompt);
  EXPECT_EQ(decode(model, sequence, {}, 1000).tokens.size(), 30U);
  EXPECT_GT(model.draft_counts().accepted, 0);
}

TEST(Drafts, AreCountedByGenerate) {
  const File file;
  Model plain = Model::load(file.path, precise());
  const Tokens prompt = continued_text(plain);
  Model model = Model::load(file.path, drafting());
  Sequence sequence = model.start();
  Tokens tokens;
  const Generated generated =
      model.generate(sequence, prompt, {}, 60, {}, {}, [&](std::int32_t token) { tokens.push_back(token); });
  EXPECT_EQ(generated.tokens, tokens);
  EXPECT_GT(generated.drafts_accepted, 0);
  EXPECT_EQ(generated.runs + generated.drafts_accepted, generated.steps);
  Sequence other = plain.start();
  const Generated without = plain.generate(other, prompt, {}, 60);
  EXPECT_EQ(without.tokens, tokens);
  EXPECT_EQ(without.runs, without.steps);
  EXPECT_EQ(without.drafts, 0);
}

TEST(Drafts, AutoGivesTheSameText) {
  const File file;
  const Text plain = decode(file.path, precise(), DraftMode::kOff, {}, 500);
  const Text drafted = decode(file.path, precise(), DraftMode::kAuto, {}, 500);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_TRUE(same_bits(drafted.last, plain.last));
  EXPECT_GT(drafted.counts.drafts, 0);
}

// The state is further on than the tokens by then, whatever the judge has seen.
TEST(Drafts, WhatAJudgeThrowsDamagesTheSequence) {
  const File file;
  ModelOptions options = drafting();
  options.sequences = 2;
  Model model = Model::load(file.path, options);
  Sequence sequence = model.start();
  model.prefill(sequence, Tokens{1, 2, 3});
  const Sampling greedy;
  const Tokens tokens = {model.sample(sequence, greedy), 2, 3};
  const SequenceInput input{&sequence, tokens};
  const auto verify = [&](const Model::AcceptDraft& accept) {
    return model.verify(std::span(&input, 1), std::span(&greedy, 1), accept);
  };
  EXPECT_THROW((void)verify([](std::size_t, std::int32_t) -> bool { throw std::runtime_error("no judgement"); }),
               std::runtime_error);
  expect_error([&] { (void)sequence.logits(); }, {"interrupted"});
  sequence.clear();
  model.prefill(sequence, Tokens{1, 2, 3});
  EXPECT_EQ(verify([&](std::size_t, std::int32_t draft) { return sequence.tokens().size() == 4 && draft == 2; }),
            std::vector<std::int64_t>{2});
  Sequence other = model.start();
  model.prefill(other, Tokens{1, 2, 3});
  model.step(other, tokens[0]);
  model.step(other, 2);
  EXPECT_TRUE(same_bits(sequence.logits(), other.logits()));
}

TEST(Drafts, OptionsThatCannotBe) {
  const File file;
  ModelOptions options = drafting();
  options.state_dtype = DType::kBF16;
  expect_error([&] { Model::load(file.path, options); }, {"draft", "F32", "lookup"});
  options.draft = DraftMode::kAuto;
  EXPECT_NO_THROW(Model::load(file.path, options));
  options.draft_max = 0;
  expect_error([&] { Model::load(file.path, options); }, {"draft_max", "1 to 64", "0"});
}

struct Pearson {
  double statistic = 0;
  double freedom = -1;  // degrees of freedom
};

// Compares counts with what was expected; outcomes that are expected less than five times count together.
Pearson pearson(const std::vector<double>& expected, const std::vector<double>& counted) {
  Pearson result;
  double rare_expected = 0;
  double rare_counted = 0;
  const auto add = [&](double of, double count) {
    result.statistic += (count - of) * (count - of) / of;
    result.freedom += 1;
  };
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] >= 5) {
      add(expected[i], counted[i]);
    } else {
      rare_expected += expected[i];
      rare_counted += counted[i];
    }
  }
  if (rare_expected >= 5) add(rare_expected, rare_counted);
  return result;
}

// 20,000 draws of two tokens, the second of which was drafted: Pearson's statistic against the model's probabilities.
TEST(Drafts, KeepTheDistributionOfDraws) {
  constexpr int kVocabulary = 13;
  constexpr int kDraws = 20000;
  const File file("qwen35moe", DType::kF32, kVocabulary);
  Model model = Model::load(file.path, drafting());
  // After 5 6 and any token there is a draft.
  Tokens prompt;
  for (std::int32_t token = 0; token < kVocabulary; ++token) {
    for (const std::int32_t next : {5, 6, token, (token * 5 + 2) % kVocabulary}) prompt.push_back(next);
  }
  prompt.push_back(5);
  prompt.push_back(6);
  Sequence sequence = model.start();
  model.prefill(sequence, prompt);
  const std::string saved = file.folder / "prompt";
  sequence.save(saved);
  const auto probabilities = [&] {
    std::vector<double> values;
    double sum = 0;
    for (const float logit : sequence.logits()) sum += values.emplace_back(std::exp(static_cast<double>(logit)));
    for (double& value : values) value /= sum;
    return values;
  };
  std::vector<double> expected;
  const std::vector<double> first = probabilities();
  for (std::int32_t token = 0; token < kVocabulary; ++token) {
    sequence.restore(saved);
    model.step(sequence, token);
    for (const double second : probabilities()) {
      expected.push_back(kDraws * first[static_cast<std::size_t>(token)] * second);
    }
  }
  std::vector<double> counted(expected.size(), 0.0);
  std::int64_t drafts = 0;
  std::int64_t accepted = 0;
  Sampling sampling;
  sampling.temperature = 1.0F;
  Sequence* const sequences[] = {&sequence};
  for (int draw = 0; draw < kDraws; ++draw) {
    sequence.restore(saved);
    sampling.seed = static_cast<std::uint64_t>(draw);
    std::vector<std::int32_t> pair;
    model.decode(
        sequences, std::span(&sampling, 1), 2,
        [&](std::span<const std::int32_t> tokens) {
          pair.push_back(tokens.front());
          return true;
        },
        {}, true);
    ASSERT_EQ(pair.size(), 2U);
    counted[static_cast<std::size_t>(pair[0]) * kVocabulary + static_cast<std::size_t>(pair[1])] += 1;
    const bool right = pair[1] == (pair[0] * 5 + 2) % kVocabulary;
    ++drafts;
    accepted += right ? 1 : 0;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, drafts - 100);
  const DraftCounts made = model.draft_counts();
  EXPECT_GT(made.accepted, 100);
  EXPECT_GT(made.drafts, made.accepted + 100);
  const auto [statistic, freedom] = pearson(expected, counted);
  EXPECT_GT(freedom, 20);
  // Four standard deviations above the mean.
  EXPECT_LT(statistic, freedom + 4 * std::sqrt(2 * freedom)) << freedom << " degrees of freedom";
}

}  // namespace
}  // namespace thalweg::model
