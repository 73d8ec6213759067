// EngineOptions::cache_answers: a turn goes on from the answer before it, with the bits of a sequence that was never
// given back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "decode/logprobs.h"
#include "engine/outputs.h"
#include "thalweg/engine.h"

namespace thalweg {
namespace {

using Text = std::vector<std::int32_t>;
constexpr std::int64_t kBlock = 64;

Model shipped_model(int sequences = 1, DraftMode draft = DraftMode::kOff) {
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 4096;
  options.sequences = sequences;
  options.draft = draft;
  return Model::load(THALWEG_MODEL, options);
}

EngineOptions with_answers(std::uint64_t bytes = std::uint64_t{1} << 30) {
  EngineOptions options;
  options.cache_answers = true;
  options.cache_bytes = bytes;
  return options;
}

Text words(const Model& model, std::uint32_t seed, std::size_t count) {
  constexpr std::string_view kSentences[] = {"John went to the kitchen. ", "Mary took the ball there. ",
                                             "The ball is in the garden. ", "Where is the milk? ",
                                             "Sandra dropped the apple. "};
  std::mt19937 random(seed);
  std::string text;
  for (std::size_t i = 0; i < count / 4 + 8; ++i) text += kSentences[random() % std::size(kSentences)];
  Text tokens = model.tokenize(text);
  EXPECT_GE(tokens.size(), count);
  tokens.resize(count);
  return tokens;
}

Request request_of(const Text& prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  request.ignore_end = true;
  request.logprobs = 2;
  return request;
}

Output read_answer(TokenStream stream) {
  Output all = read_all(std::move(stream));
  EXPECT_EQ(all.error, "");
  return all;
}

std::int64_t computed(const Output& output) { return output.usage.prompt_tokens - output.usage.cached_tokens; }

void append(Text& text, const Text& more) { text.insert(text.end(), more.begin(), more.end()); }

// A sequence driven by hand, which keeps its state from turn to turn.
class ByHand {
 public:
  explicit ByHand(Model& model) : model_(model), sequence_(model.start()) {}

  // Runs the tokens that it has not yet, cut as the engine cuts them, and chooses so many.
  Output answer(const Text& prompt, std::int64_t count) {
    const auto size = static_cast<std::int64_t>(prompt.size());
    while (position() < size) {
      const std::int64_t begin = position();
      std::int64_t end = size;
      if (begin < size / kBlock * kBlock)
        end = begin % kBlock != 0 ? (begin / kBlock + 1) * kBlock : size / kBlock * kBlock;
      model_.prefill(sequence_,
                     std::span(prompt).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    }
    Output output;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t token = model_.sample(sequence_, {});
      TokenLogprobs logprobs;
      logprobs.chosen = {token, decode::logprob(sequence_.logits(), token)};
      output.tokens.push_back(token);
      output.logprobs.push_back(logprobs);
      if (i + 1 < count) model_.prefill(sequence_, std::span(&token, 1));
    }
    return output;
  }

 private:
  std::int64_t position() const { return static_cast<std::int64_t>(sequence_.tokens().size()); }

  Model& model_;
  Sequence sequence_;
};

void expect_same_bits(const Output& given, const Output& expected, const std::string& what) {
  EXPECT_EQ(given.tokens, expected.tokens) << what;
  ASSERT_EQ(given.logprobs.size(), expected.logprobs.size()) << what;
  for (std::size_t i = 0; i < given.logprobs.size(); ++i) {
    EXPECT_EQ(given.logprobs[i].chosen.logprob, expected.logprobs[i].chosen.logprob) << what << ", token " << i;
  }
}

// Of a run of the same text whose sums were rounded otherwise: as far as the tokens agree, their log-probabilities are
// close, and the first that does not was a close call. With activations in 8 bits these turns differ by 0.08 at most,
// with AVX-512; other instruction sets round otherwise.
constexpr double kRounding = 0.25;
void expect_close(const Output& given, const Output& cold, const std::string& what) {
  for (std::size_t i = 0; i < given.tokens.size(); ++i) {
    const auto& likeliest = cold.logprobs[i].likeliest;
    if (given.tokens[i] != cold.tokens[i]) {
      EXPECT_LT(likeliest[0].logprob - likeliest[1].logprob, 2 * kRounding) << what << ", token " << i;
      return;
    }
    EXPECT_NEAR(given.logprobs[i].chosen.logprob, cold.logprobs[i].chosen.logprob, kRounding)
        << what << ", token " << i;
  }
}

TEST(EngineAnswers, ATurnHasTheBitsOfASequenceThatWentOn) {
  Engine engine(shipped_model(2), with_answers());
  EngineOptions no_cache;
  no_cache.cache_bytes = 0;
  Engine cold(shipped_model(), no_cache);
  Model model = shipped_model();
  for (std::uint32_t talk = 0; talk < 3; ++talk) {
    ByHand by_hand(model);
    Text text = words(model, talk, 20 + 150 * talk);
    std::int64_t known = 0;
    for (std::uint32_t turn = 0; turn < 8; ++turn) {
      const std::string what = "talk " + std::to_string(talk) + ", turn " + std::to_string(turn);
      const auto count = static_cast<std::int64_t>(3 + (turn * 29 + talk * 7) % 90);
      const Output given = read_answer(engine.stream(request_of(text, count)));
      // What was chosen last has not been run.
      EXPECT_EQ(given.usage.cached_tokens, known) << what;
      expect_same_bits(given, by_hand.answer(text, count), what);
      expect_close(given, read_answer(cold.stream(request_of(text, count))), what);
      append(text, given.tokens);
      known = static_cast<std::int64_t>(text.size()) - 1;
      append(text, words(model, 100 * talk + turn, 1 + (turn * 53) % 140));
    }
  }
}

TEST(EngineAnswers, WithoutItATurnHasTheBitsOfAColdRun) {
  Engine engine(shipped_model());
  EngineOptions no_cache;
  no_cache.cache_bytes = 0;
  Engine cold(shipped_model(), no_cache);
  Text text = words(engine.model(), 5, 90);
  for (std::uint32_t turn = 0; turn < 6; ++turn) {
    const Output given = read_answer(engine.stream(request_of(text, 80)));
    const Output expected = read_answer(cold.stream(request_of(text, 80)));
    expect_same_bits(given, expected, "turn " + std::to_string(turn));
    if (turn > 0) {
      EXPECT_GE(computed(given), 80 + 20 - 1);
    }
    append(text, given.tokens);
    append(text, words(engine.model(), turn, 20));
  }
}

TEST(EngineAnswers, AConversationComputesWhatIsNewAlone) {
  Engine engine(shipped_model(4), with_answers());
  Text text = words(engine.model(), 1, 300);
  std::int64_t asked = 0;
  for (std::uint32_t turn = 0; turn < 20; ++turn) {
    const Output output = read_answer(engine.stream(request_of(text, 30)));
    EXPECT_EQ(computed(output), static_cast<std::int64_t>(text.size()) - asked) << "turn " << turn;
    append(text, output.tokens);
    asked = static_cast<std::int64_t>(text.size()) - 1;
    append(text, words(engine.model(), 10 + turn, 25));
  }
}

TEST(EngineAnswers, AnEditedMessageGoesOnFromTheAnswerBeforeIt) {
  Engine engine(shipped_model(), with_answers());
  Text text = words(engine.model(), 2, 200);
  append(text, read_answer(engine.stream(request_of(text, 33))).tokens);
  for (std::uint32_t edit = 0; edit < 4; ++edit) {
    Text edited = text;
    append(edited, words(engine.model(), 20 + edit, 150));
    EXPECT_EQ(computed(read_answer(engine.stream(request_of(edited, 5)))), 150 + 1) << "edit " << edit;
  }
}

// As templates do that leave the reasoning of earlier answers out.
TEST(EngineAnswers, AnAnswerThatIsRenderedOtherwiseCostsItself) {
  Engine engine(shipped_model(), with_answers());
  const Text prompt = words(engine.model(), 3, 200);
  const Output answer = read_answer(engine.stream(request_of(prompt, 60)));
  Text next = prompt;
  next.insert(next.end(), answer.tokens.begin() + 20, answer.tokens.end());
  append(next, words(engine.model(), 30, 30));
  const Output output = read_answer(engine.stream(request_of(next, 5)));
  EXPECT_EQ(output.usage.cached_tokens, 200 / kBlock * kBlock);
}

TEST(EngineAnswers, StoppedCancelledAndDraftedOnesAreKept) {
  Engine engine(shipped_model(1, DraftMode::kAuto), with_answers());
  Model model = shipped_model();
  Text text = words(model, 4, 100);
  Request stopped = request_of(text, 100);
  stopped.stop = {"e"};
  const Output first = read_answer(engine.stream(std::move(stopped)));
  ASSERT_EQ(first.finish, FinishReason::kStop);
  append(text, first.tokens);
  text.push_back(words(model, 40, 1).front());
  ByHand by_hand(model);
  const Text first_prompt(text.begin(), text.begin() + 100);
  by_hand.answer(first_prompt, static_cast<std::int64_t>(first.tokens.size()));
  const Output second = read_answer(engine.stream(request_of(text, 60)));
  EXPECT_EQ(computed(second), 2);
  expect_same_bits(second, by_hand.answer(text, 60), "after a stop");
  append(text, second.tokens);
  append(text, words(model, 41, 10));

  TokenStream stream = engine.stream(request_of(text, -1));
  Output output;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(stream.next(output));
    append(text, output.tokens);
  }
  stream.cancel();
  std::optional<FinishReason> finish;
  while (stream.next(output)) {
    append(text, output.tokens);
    finish = output.finish;
  }
  ASSERT_EQ(finish, FinishReason::kCancelled);
  append(text, words(model, 42, 10));
  EXPECT_LE(computed(read_answer(engine.stream(request_of(text, 1)))), 11);
  EXPECT_GT(engine.stats().draft_tokens, 0U);
}

TEST(EngineAnswers, ASmallBudgetIsKept) {
  EngineOptions no_cache;
  no_cache.cache_bytes = 0;
  Engine cold(shipped_model(), no_cache);
  Engine small(shipped_model(3), with_answers(std::uint64_t{6} << 20));
  std::vector<Text> talks;
  for (std::uint32_t i = 0; i < 6; ++i) talks.push_back(words(cold.model(), i, 100 + 20 * i));
  for (std::uint32_t turn = 0; turn < 4; ++turn) {
    std::vector<TokenStream> streams;
    for (const Text& text : talks) streams.push_back(small.stream(request_of(text, 20)));
    for (std::size_t i = 0; i < talks.size(); ++i) {
      const Output output = read_answer(std::move(streams[i]));
      expect_close(output, read_answer(cold.stream(request_of(talks[i], 20))), "talk " + std::to_string(i));
      append(talks[i], output.tokens);
      append(talks[i], words(cold.model(), turn, 30));
    }
    EXPECT_LE(small.stats().cache_bytes, std::uint64_t{6} << 20);
  }
  EXPECT_GT(small.stats().cache_evictions, 0U);
}

TEST(EngineAnswers, AFolderKeepsThemForEnginesOfTheSameKind) {
  std::string name = (std::filesystem::temp_directory_path() / "thalweg-XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(name.data());
  EngineOptions options = with_answers();
  options.cache_dir = folder.string();
  Model model = shipped_model();
  ByHand by_hand(model);
  Text text = words(model, 6, 150);
  for (std::uint32_t process = 0; process < 3; ++process) {
    Engine engine(shipped_model(), options);
    const Output output = read_answer(engine.stream(request_of(text, 40)));
    expect_same_bits(output, by_hand.answer(text, 40), "process " + std::to_string(process));
    if (process > 0) {
      EXPECT_EQ(computed(output), 20 + 1);
    }
    EXPECT_EQ(engine.stats().cache_dir_failures, 0U);
    append(text, output.tokens);
    append(text, words(model, 60 + process, 20));
  }
  {
    options.cache_answers = false;
    EngineOptions no_cache;
    no_cache.cache_bytes = 0;
    Engine plain(shipped_model(), options);
    Engine cold(shipped_model(), no_cache);
    const Output output = read_answer(plain.stream(request_of(text, 10)));
    EXPECT_EQ(output.usage.cached_tokens, 0);
    expect_same_bits(output, read_answer(cold.stream(request_of(text, 10))), "without answers");
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace thalweg
