// The engine over a model that several ranks run together.

#include "model/ranks.h"

#include "comm/communicator.h"
#include "convert/synthesize.h"
#include "thalweg/engine.h"

namespace thalweg::model {
namespace {

struct Answer {
  std::vector<std::int32_t> tokens;
  std::optional<FinishReason> finish;
  std::string error;
  Usage usage;
};

Answer answer_to(Engine& engine, const std::vector<std::int32_t>& prompt) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = 12;
  request.ignore_end = true;
  TokenStream stream = engine.stream(std::move(request));
  Answer answer;
  for (Output output; stream.next(output);) {
    answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
    answer.finish = output.finish;
    answer.error = output.error;
    answer.usage = output.usage;
  }
  return answer;
}

std::vector<std::int32_t> random_ids(std::size_t count) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(i * i * 37 % 997));
  return ids;
}

class EngineRanksThreads : public testing::Test {
 protected:
  EngineRanksThreads() {
    convert::SynthOptions synth;
    synth.gigabytes = 0.02;
    convert::synthesize(folder_ / "model.gguf", convert::type_mix("Q8_0"), synth);
  }

  TempFolder folder_;
};

class EngineRankSplits : public EngineRanksThreads, public testing::WithParamInterface<RankSplit> {};

TEST_P(EngineRankSplits, ThePrefixCacheHoldsTheStatesOfAllRanks) {
  const std::vector<std::int32_t> prompt = random_ids(700);
  ModelOptions model_options = precise(2);
  model_options.rank_split = GetParam();
  std::vector<std::int32_t> expected;
  for (const bool fresh : {true, false}) {
    // The second engine finds the first one's files.
    RankedModel ranked(folder_ / "model.gguf", model_options, 2);
    {
      EngineOptions options;
      options.cache_dir = folder_ / "cache";
      Engine engine(ranked.take(), options);
      const Answer first = answer_to(engine, prompt);
      EXPECT_EQ(first.finish, FinishReason::kLength) << first.error;
      if (fresh) expected = first.tokens;
      EXPECT_EQ(first.tokens, expected);
      EXPECT_EQ(first.usage.cached_tokens > 0, !fresh);
      const Answer again = answer_to(engine, prompt);
      EXPECT_GT(again.usage.cached_tokens, 100);
      EXPECT_EQ(again.tokens, expected);
    }
    EXPECT_TRUE(ranked.end().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineRankSplits, testing::Values(RankSplit::kTensor, RankSplit::kSequence),
                         [](const testing::TestParamInfo<RankSplit>& tested) {
                           return tested.param == RankSplit::kTensor ? "Tensor" : "Sequence";
                         });

TEST_F(EngineRanksThreads, ALostRankFailsTheRequestsAndNotTheProcess) {
  const auto ranks = Ranks::in_process(2, 2);
  RankedModel ranked(folder_ / "model.gguf", precise(2), ranks);
  const std::vector<std::int32_t> prompt = random_ids(70);
  {
    Engine engine(ranked.take());
    EXPECT_EQ(answer_to(engine, prompt).finish, FinishReason::kLength);
    ranks[1]->communicator().fail("killed by the test");
    for (int i = 0; i < 3; ++i) {
      const Answer answer = answer_to(engine, prompt);
      EXPECT_EQ(answer.finish, FinishReason::kError);
      EXPECT_NE(answer.error.find("rank"), std::string::npos) << answer.error;
    }
    EXPECT_EQ(engine.stats().failed, 3U);
  }
  EXPECT_EQ(ranked.end().size(), 1U);
}

}  // namespace
}  // namespace thalweg::model
