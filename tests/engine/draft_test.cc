// Drafts in an engine: the same answers, in company too, with everything that may end or change them.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/outputs.h"
#include "thalweg/engine.h"

namespace thalweg {
namespace {

constexpr int kSequences = 4;

Engine engine_with(DraftMode draft) {
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 400;
  options.sequences = kSequences;
  options.draft = draft;
  return Engine(Model::load(THALWEG_MODEL, options));
}

// Of a kind for each number: lengths, stop strings, logprobs, penalties, draws, end tokens, the context's end.
Request request_of(const Engine& engine, int number) {
  Request request;
  std::string text;
  for (int i = 0; i < 6 + number % 3; ++i) text += "John went to the kitchen. Mary took the ball there. ";
  if (number % 4 == 1) text += "Where is the ball?";
  request.prompt = engine.model().tokenize(text);
  request.max_tokens = 1 + 13 * number % 90;
  request.ignore_end = number % 4 != 1;
  if (number % 5 == 2) request.stop = {"qqq", " is "};
  if (number % 3 == 0) request.logprobs = 2;
  if (number % 6 == 5) request.sampling.repeat_penalty = 1.1F;
  if (number % 2 == 1) request.sampling.temperature = 0.7F;
  request.sampling.seed = static_cast<std::uint64_t>(number);
  if (number == 11) request.max_tokens = -1;
  return request;
}

TEST(EngineDrafts, GiveTheSameAnswers) {
  constexpr int kRequests = 14;
  std::vector<Output> plain;
  {
    Engine engine = engine_with(DraftMode::kOff);
    for (int i = 0; i < kRequests; ++i) plain.push_back(read_all(engine.stream(request_of(engine, i))));
    EXPECT_EQ(engine.stats().draft_tokens, 0U);
  }
  EXPECT_TRUE(std::any_of(plain.begin(), plain.end(), [](const Output& o) { return o.finish == FinishReason::kStop; }));
  EXPECT_TRUE(
      std::any_of(plain.begin(), plain.end(), [](const Output& o) { return o.finish == FinishReason::kEndToken; }));
  for (const DraftMode mode : {DraftMode::kLookup, DraftMode::kAuto}) {
    Engine engine = engine_with(mode);
    std::vector<TokenStream> streams;
    for (int i = 0; i < kRequests; ++i) streams.push_back(engine.stream(request_of(engine, i)));
    std::int64_t drafts = 0;
    std::int64_t accepted = 0;
    for (int i = 0; i < kRequests; ++i) {
      const Output output = read_all(std::move(streams[static_cast<std::size_t>(i)]));
      expect_same(output, plain[static_cast<std::size_t>(i)], i);
      drafts += output.usage.draft_tokens;
      accepted += output.usage.accepted_tokens;
    }
    if (mode == DraftMode::kLookup) {
      EXPECT_GT(accepted, 0);
      EXPECT_GT(drafts, accepted);
    }
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.draft_tokens, static_cast<std::uint64_t>(drafts));
    EXPECT_EQ(stats.accepted_tokens, static_cast<std::uint64_t>(accepted));
  }
}

TEST(EngineDrafts, KeepToAGrammar) {
  const std::string schema =
      R"({"type": "array", "minItems": 12, "maxItems": 12, "items": {"enum": ["kitchen", "garden"]}})";
  const Grammar grammar = Grammar::json_schema(schema);
  std::vector<std::string> texts;
  for (const DraftMode mode : {DraftMode::kOff, DraftMode::kLookup}) {
    Engine engine = engine_with(mode);
    Request request;
    request.prompt = engine.model().tokenize("John went to the kitchen.");
    request.max_tokens = 300;
    request.constraint = engine.constraint(grammar);
    const Output output = read_all(engine.stream(std::move(request)));
    EXPECT_EQ(output.finish, FinishReason::kEndToken);
    texts.push_back(output.text);
    EXPECT_EQ(output.usage.accepted_tokens > 0, mode == DraftMode::kLookup);
  }
  EXPECT_EQ(texts[0], texts[1]);
}

// A conversation goes on from the prefix cache, whose checkpoints know nothing of drafts.
TEST(EngineDrafts, LeaveThePrefixCacheAsItIs) {
  Engine plain = engine_with(DraftMode::kOff);
  Engine drafted = engine_with(DraftMode::kLookup);
  std::vector<std::int32_t> text = request_of(plain, 0).prompt;
  for (int turn = 0; turn < 3; ++turn) {
    const auto ask = [&](Engine& engine) {
      Request request;
      request.prompt = text;
      request.max_tokens = 40;
      request.ignore_end = true;
      request.logprobs = 0;
      return read_all(engine.stream(std::move(request)));
    };
    const Output a = ask(plain);
    const Output b = ask(drafted);
    expect_same(b, a, turn);
    text.insert(text.end(), a.tokens.begin(), a.tokens.end());
  }
}

}  // namespace
}  // namespace thalweg
