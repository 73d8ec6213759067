// The engine over the shipped model: the same text alone and in company, warm and cold; no token computed twice.

#include "thalweg/engine.h"
#include "engine/outputs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace thalweg {
namespace {

ModelOptions model_options(int sequences) {
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 8192;
  options.sequences = sequences;
  return options;
}

Model shipped_model(int sequences = 4) { return Model::load(THALWEG_MODEL, model_options(sequences)); }

constexpr std::string_view kSentences[] = {
    "John went to the kitchen. ",       "Mary took the ball there. ",    "The ball is in the garden. ",
    "Daniel moved to the office. ",     "Sandra dropped the apple. ",    "Where is the milk? ",
    "Mary travelled to the bathroom. ", "John picked up the football. ",
};

std::string story(std::uint32_t seed, std::size_t sentences) {
  std::mt19937 random(seed);
  std::string text;
  for (std::size_t i = 0; i < sentences; ++i) text += kSentences[random() % std::size(kSentences)];
  return text;
}

std::vector<std::int32_t> story_tokens(const Engine& engine, std::uint32_t seed, std::size_t count) {
  std::vector<std::int32_t> tokens = engine.model().tokenize(story(seed, count / 4 + 8));
  EXPECT_GE(tokens.size(), count);
  tokens.resize(count);
  return tokens;
}

Request request_of(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_end = true;
  return request;
}

// A request of its own kind for each seed.
Request random_request(const Engine& engine, std::uint32_t seed) {
  std::mt19937 random(seed);
  Request request = request_of(story_tokens(engine, seed, 1 + random() % 400), static_cast<int>(1 + random() % 40));
  request.logprobs = 3;
  request.sampling.seed = seed;
  if (random() % 2 == 0) request.sampling.temperature = 1.5F;
  if (random() % 3 == 0) request.sampling.repeat_penalty = 1.2F;
  return request;
}

void expect_same_bits(const Output& a, const Output& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.text, b.text) << what;
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << what;
  for (std::size_t i = 0; i < a.logprobs.size(); ++i) {
    EXPECT_EQ(a.logprobs[i].chosen.logprob, b.logprobs[i].chosen.logprob) << what << ", token " << i;
    ASSERT_EQ(a.logprobs[i].likeliest.size(), b.logprobs[i].likeliest.size());
    for (std::size_t k = 0; k < a.logprobs[i].likeliest.size(); ++k) {
      EXPECT_EQ(a.logprobs[i].likeliest[k].token, b.logprobs[i].likeliest[k].token) << what;
      EXPECT_EQ(a.logprobs[i].likeliest[k].logprob, b.logprobs[i].likeliest[k].logprob) << what << ", token " << i;
    }
  }
}

EngineOptions without_cache() {
  EngineOptions options;
  options.cache_bytes = 0;
  return options;
}

TEST(Engine, GivesTheModelsOwnText) {
  Model model = shipped_model(1);
  const std::vector<std::int32_t> prompt = model.tokenize("John went to the kitchen. Where is John?");
  Sequence sequence = model.start();
  std::string text;
  const Generated generated = model.generate(sequence, prompt, {}, 20, [&](std::string_view bytes) {
    text += bytes;
    return true;
  });
  Engine engine(shipped_model(1));
  Request request;
  request.prompt = prompt;
  request.max_tokens = 20;
  const Output output = read_all(engine.stream(std::move(request)));
  EXPECT_EQ(output.tokens, generated.tokens);
  EXPECT_EQ(output.text, text);
  EXPECT_EQ(output.usage.prompt_tokens, static_cast<std::int64_t>(prompt.size()));
  EXPECT_EQ(output.usage.generated_tokens, static_cast<std::int64_t>(output.tokens.size()));
}

TEST(Engine, AnswersAreTheSameAloneAndInCompany) {
  constexpr std::uint32_t kRequests = 24;
  std::vector<Output> alone;
  {
    Engine engine(shipped_model(1), without_cache());
    for (std::uint32_t i = 0; i < kRequests; ++i) alone.push_back(read_all(engine.stream(random_request(engine, i))));
  }
  Engine engine(shipped_model(7), without_cache());
  std::vector<TokenStream> streams;
  for (std::uint32_t i = 0; i < kRequests; ++i) streams.push_back(engine.stream(random_request(engine, i)));
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    const Output output = read_all(std::move(streams[i]));
    EXPECT_EQ(output.finish, FinishReason::kLength);
    expect_same_bits(output, alone[i], "request " + std::to_string(i));
  }
}

TEST(Engine, AWarmRunGivesTheBitsOfAColdOne) {
  Engine cold(shipped_model(1), without_cache());
  Engine warm(shipped_model(3));
  for (std::uint32_t i = 0; i < 12; ++i) {
    std::mt19937 random(i);
    // Texts that share beginnings of many lengths.
    std::vector<std::int32_t> prompt = story_tokens(cold, i % 3, 64 + random() % 1500);
    const std::vector<std::int32_t> rest = story_tokens(cold, 100 + i, 1 + random() % 200);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    for (int again = 0; again < 2; ++again) {
      const auto request = [&] {
        Request made = request_of(prompt, 12);
        made.logprobs = 5;
        made.boundaries = {static_cast<std::int64_t>(prompt.size() - rest.size())};
        return made;
      };
      const Output expected = read_all(cold.stream(request()));
      const Output given = read_all(warm.stream(request()));
      EXPECT_EQ(expected.usage.cached_tokens, 0);
      if (again == 1 && prompt.size() > 64) {
        EXPECT_GE(given.usage.cached_tokens + 64, given.usage.prompt_tokens);
      }
      expect_same_bits(given, expected, "prompt " + std::to_string(i));
    }
  }
  EXPECT_GT(warm.stats().prompt_tokens_cached, 0U);
}

// A conversation whose turns append the answer and the next question.
class Talk {
 public:
  Talk(Engine& engine, std::uint32_t seed, std::size_t beginning) : engine_(engine), random_(seed) {
    text_ = story_tokens(engine, seed, beginning);
    ends_ = {static_cast<std::int64_t>(text_.size())};
  }

  // Returns how many tokens of the prompt were computed that the last turn's prompt did not have, and how many in all.
  void turn(std::size_t question) {
    const std::vector<std::int32_t> more = story_tokens(engine_, random_(), question);
    text_.insert(text_.end(), more.begin(), more.end());
    ask();
  }

  void edit_last_question(std::size_t question) {
    text_.resize(static_cast<std::size_t>(ends_[ends_.size() - 2]));
    ends_.pop_back();
    asked_ = static_cast<std::int64_t>(text_.size());
    turn(question);
  }

  std::int64_t new_tokens() const { return new_tokens_; }
  std::int64_t computed() const { return computed_; }

 private:
  void ask() {
    Request request = request_of(text_, 10);
    request.boundaries = ends_;
    request.boundaries.push_back(static_cast<std::int64_t>(text_.size()));
    const Output output = read_all(engine_.stream(std::move(request)));
    const auto size = static_cast<std::int64_t>(text_.size());
    new_tokens_ = size - asked_;
    computed_ = size - output.usage.cached_tokens;
    asked_ = size;
    text_.insert(text_.end(), output.tokens.begin(), output.tokens.end());
    ends_.push_back(static_cast<std::int64_t>(text_.size()));
  }

  Engine& engine_;
  std::mt19937 random_;
  std::vector<std::int32_t> text_;
  std::vector<std::int64_t> ends_;
  std::int64_t asked_ = 0;
  std::int64_t new_tokens_ = 0;
  std::int64_t computed_ = 0;
};

TEST(Engine, AConversationComputesEachTokenOnce) {
  Engine engine(shipped_model(1));
  Talk talk(engine, 1, 700);
  for (int turn = 0; turn < 20; ++turn) {
    talk.turn(20 + 13 * static_cast<std::size_t>(turn % 5));
    EXPECT_LE(talk.computed(), talk.new_tokens() + 64) << "turn " << turn;
  }
}

TEST(Engine, AnEditedLastMessageComputesTheMessageOnly) {
  Engine engine(shipped_model(1));
  Talk talk(engine, 2, 900);
  talk.turn(300);
  talk.turn(300);
  for (int i = 0; i < 5; ++i) {
    talk.edit_last_question(250);
    EXPECT_LE(talk.computed(), talk.new_tokens() + 64) << "edit " << i;
  }
}

TEST(Engine, ConversationsShareTheirBeginning) {
  Engine engine(shipped_model(1));
  constexpr std::size_t kShared = 4096;
  const std::vector<std::int32_t> shared = story_tokens(engine, 5, kShared);
  for (std::uint32_t i = 0; i < 3; ++i) {
    std::vector<std::int32_t> prompt = shared;
    const std::vector<std::int32_t> rest = story_tokens(engine, 50 + i, 100);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    Request request = request_of(prompt, 1);
    request.boundaries = {kShared};
    const Usage usage = read_all(engine.stream(std::move(request))).usage;
    const auto size = static_cast<std::int64_t>(prompt.size());
    if (i > 0) {
      EXPECT_LE(size - usage.cached_tokens, 100 + 64);
    }
  }
}

TEST(Engine, TextsThatPartWhereNobodySaidComputeTheBeginningTwiceAtMost) {
  Engine engine(shipped_model(1));
  const std::vector<std::int32_t> shared = story_tokens(engine, 6, 700);
  for (std::uint32_t i = 0; i < 4; ++i) {
    std::vector<std::int32_t> prompt = shared;
    const std::vector<std::int32_t> rest = story_tokens(engine, 60 + i, 300);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const Usage usage = read_all(engine.stream(request_of(prompt, 1))).usage;
    if (i >= 2) {
      EXPECT_LE(usage.prompt_tokens - usage.cached_tokens, 300 + 64);
    }
  }
}

TEST(Engine, ManyConversationsTakeTurnsWithinTheBudget) {
  EngineOptions options;
  options.cache_bytes = std::uint64_t{1} << 30;
  Engine engine(shipped_model(4), options);
  std::vector<Talk> talks;
  for (std::uint32_t i = 0; i < 50; ++i) talks.emplace_back(engine, 1000 + i, 150);
  for (int turn = 0; turn < 3; ++turn) {
    for (Talk& talk : talks) {
      talk.turn(70);
      EXPECT_LE(talk.computed(), talk.new_tokens() + 64) << "turn " << turn;
    }
  }
  EXPECT_LE(engine.stats().cache_bytes, options.cache_bytes);
  EXPECT_EQ(engine.stats().cache_evictions, 0U);
}

TEST(Engine, ASmallBudgetIsKeptAndAnswersStayTrue) {
  EngineOptions options;
  options.cache_bytes = 8 << 20;
  Engine small(shipped_model(2), options);
  Engine cold(shipped_model(1), without_cache());
  for (std::uint32_t i = 0; i < 10; ++i) {
    const auto request = [&] {
      Request made = request_of(story_tokens(cold, i % 3, 300 + 50 * (i % 4)), 5);
      made.logprobs = 2;
      return made;
    };
    expect_same_bits(read_all(small.stream(request())), read_all(cold.stream(request())), std::to_string(i));
    EXPECT_LE(small.stats().cache_bytes, options.cache_bytes);
  }
}

TEST(Engine, ACacheInAFolderOutlivesTheEngine) {
  std::string name = (std::filesystem::temp_directory_path() / "thalweg-XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(name.data());
  EngineOptions options;
  options.cache_dir = folder.string();
  Engine cold(shipped_model(1), without_cache());
  const auto request = [&](std::uint32_t seed) {
    Request made = request_of(story_tokens(cold, seed, 300 + 50 * seed), 5);
    made.logprobs = 2;
    return made;
  };
  for (int process = 0; process < 3; ++process) {
    Engine engine(shipped_model(4), options);
    EXPECT_THROW(Engine(shipped_model(1), options), Error);
    std::vector<TokenStream> streams;
    for (std::uint32_t i = 0; i < 8; ++i) streams.push_back(engine.stream(request(i)));
    for (std::uint32_t i = 0; i < 8; ++i) {
      const Output output = read_all(std::move(streams[i]));
      expect_same_bits(output, read_all(cold.stream(request(i))), std::to_string(i));
      if (process > 0) {
        EXPECT_LE(output.usage.prompt_tokens - output.usage.cached_tokens, 64);
      }
    }
    EXPECT_EQ(engine.stats().cache_dir_tokens > 0, process > 0);
    EXPECT_EQ(engine.stats().cache_dir_failures, 0U);
  }
  options.cache_bytes = 0;
  EXPECT_THROW(Engine(shipped_model(1), options), Error);
  options.cache_bytes = 1 << 20;
  options.cache_dir = THALWEG_MODEL;
  EXPECT_THROW(Engine(shipped_model(1), options), Error);
  std::filesystem::remove_all(folder);
}

TEST(Engine, StopStringsEndTheTextBeforeThem) {
  Engine engine(shipped_model(1));
  const std::vector<std::int32_t> prompt = story_tokens(engine, 3, 100);
  const Output whole = read_all(engine.stream(request_of(prompt, 30)));
  ASSERT_GT(whole.text.size(), 20U);
  for (const std::size_t at : {std::size_t{1}, std::size_t{7}, std::size_t{12}}) {
    Request request = request_of(prompt, 30);
    request.stop = {whole.text.substr(at, 5), "never this"};
    const Output output = read_all(engine.stream(std::move(request)));
    EXPECT_EQ(output.finish, FinishReason::kStop);
    EXPECT_EQ(output.text, whole.text.substr(0, whole.text.find(whole.text.substr(at, 5))));
  }
}

// Only the tokens of a list, in turn.
class Dictation : public TokenConstraint {
 public:
  explicit Dictation(std::vector<std::int32_t> tokens, std::int64_t vocabulary)
      : tokens_(std::move(tokens)), words_(static_cast<std::size_t>(vocabulary + 31) / 32) {}

  std::span<const std::uint32_t> allowed() override {
    std::fill(words_.begin(), words_.end(), 0U);
    const auto token = static_cast<std::size_t>(tokens_[next_ % tokens_.size()]);
    words_[token / 32] = 1U << token % 32;
    return words_;
  }
  void accept(std::int32_t token) override {
    EXPECT_EQ(token, tokens_[next_ % tokens_.size()]);
    ++next_;
  }

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint32_t> words_;
  std::size_t next_ = 0;
};

TEST(Engine, AConstraintChoosesAmongItsTokens) {
  Engine engine(shipped_model(2));
  const std::vector<std::int32_t> wanted = engine.model().tokenize("The quick brown fox.");
  Request request = request_of(story_tokens(engine, 4, 50), static_cast<std::int64_t>(wanted.size()));
  request.sampling.temperature = 2.0F;
  request.constraint = std::make_unique<Dictation>(wanted, engine.model().info().vocabulary);
  TokenStream other = engine.stream(random_request(engine, 8));
  EXPECT_EQ(read_all(engine.stream(std::move(request))).tokens, wanted);
  EXPECT_EQ(read_all(std::move(other)).finish, FinishReason::kLength);
}

TEST(Engine, CancellingFreesThePlace) {
  Engine engine(shipped_model(1));
  const auto endless = [&] { return request_of(story_tokens(engine, 1, 50), 8000); };
  TokenStream first = engine.stream(endless());
  TokenStream second = engine.stream(endless());  // waits
  Output output;
  ASSERT_TRUE(first.next(output));
  second.cancel();
  first.cancel();
  EXPECT_EQ(read_all(std::move(second)).finish, FinishReason::kCancelled);
  EXPECT_EQ(read_all(std::move(first)).finish, FinishReason::kCancelled);
  EXPECT_EQ(read_all(engine.stream(request_of(story_tokens(engine, 1, 50), 3))).finish, FinishReason::kLength);
  EXPECT_EQ(engine.stats().cancelled, 2U);
}

TEST(Engine, CancelsAtRandomLeaveOthersAlone) {
  Engine alone(shipped_model(1), without_cache());
  Engine engine(shipped_model(4));
  const Output expected = read_all(alone.stream(random_request(alone, 77)));
  for (std::uint32_t round = 0; round < 20; ++round) {
    std::vector<TokenStream> others;
    for (std::uint32_t i = 0; i < 6; ++i) others.push_back(engine.stream(random_request(engine, 10 * round + i)));
    TokenStream watched = engine.stream(random_request(engine, 77));
    std::mt19937 random(round);
    for (TokenStream& other : others) {
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 8));
      other.cancel();
    }
    expect_same_bits(read_all(std::move(watched)), expected, "round " + std::to_string(round));
  }
}

TEST(Engine, AFullQueueRefuses) {
  EngineOptions options;
  options.queue = 2;
  Engine engine(shipped_model(1), options);
  std::vector<TokenStream> streams;
  bool refused = false;
  for (int i = 0; i < 10 && !refused; ++i) {
    try {
      streams.push_back(engine.stream(request_of(story_tokens(engine, 1, 50), 4000)));
    } catch (const Refused& error) {
      refused = true;
      EXPECT_STREQ(error.what(), "Engine: request: expected at most 2 that wait, got one more");
    }
  }
  EXPECT_TRUE(refused);
  EXPECT_GE(streams.size(), 3U);
  EXPECT_EQ(engine.stats().refused, 1U);
}

TEST(Engine, DrainFinishesWhatRunsAndRefusesMore) {
  Engine engine(shipped_model(2));
  TokenStream stream = engine.stream(random_request(engine, 3));
  EXPECT_TRUE(engine.drain(60));
  EXPECT_EQ(read_all(std::move(stream)).finish, FinishReason::kLength);
  EXPECT_THROW(engine.stream(random_request(engine, 4)), Refused);
}

TEST(Engine, DrainCutsOffWhatTakesTooLong) {
  Engine engine(shipped_model(1));
  TokenStream stream = engine.stream(request_of(story_tokens(engine, 1, 50), 8000));
  EXPECT_FALSE(engine.drain(0.05));
  EXPECT_EQ(read_all(std::move(stream)).finish, FinishReason::kCancelled);
}

// No request is ever in none of the counts, whatever the engine does with it.
TEST(Engine, EveryRequestIsCountedOnceAtAnyTime) {
  Engine engine(shipped_model(2));
  std::atomic<bool> done = false;
  std::size_t wrong = 0;
  std::thread watch([&] {
    while (!done) {
      const EngineStats s = engine.stats();
      const auto open = static_cast<std::uint64_t>(s.waiting + s.running);
      wrong += s.requests == open + s.finished + s.cancelled + s.failed ? 0U : 1U;
    }
  });
  for (std::uint32_t round = 0; round < 40; ++round) {
    std::vector<TokenStream> streams;
    for (std::uint32_t i = 0; i < 8; ++i) streams.push_back(engine.stream(request_of(story_tokens(engine, i, 8), 1)));
    streams[round % 8].cancel();
    for (TokenStream& stream : streams) read_all(std::move(stream));
  }
  done = true;
  watch.join();
  EXPECT_EQ(wrong, 0U);
}

// Whoever has a request's last output finds it in the counts: with one slot, waiting requests are cancelled, too.
TEST(Engine, ARequestIsCountedBeforeItsLastOutput) {
  Engine engine(shipped_model(1));
  constexpr int kRequests = 6;
  std::uint64_t ended = 0;  // of the engine's thread
  std::vector<RequestId> ids;
  for (int i = 0; i < kRequests; ++i) {
    ids.push_back(engine.submit(random_request(engine, i), [&](const Output& output) {
      const EngineStats stats = engine.stats();
      if (!output.finish) return;
      ++ended;
      EXPECT_EQ(stats.finished + stats.cancelled, ended);
      EXPECT_LE(stats.running + stats.waiting, kRequests - static_cast<std::int64_t>(ended));
      EXPECT_GE(stats.generated_tokens, static_cast<std::uint64_t>(output.usage.generated_tokens));
    }));
  }
  engine.cancel(ids.back());
  EXPECT_TRUE(engine.drain(60));
  EXPECT_EQ(ended, std::uint64_t{kRequests});
}

TEST(Engine, ACallbackThatThrowsEndsItsRequestOnly) {
  Engine engine(shipped_model(2));
  TokenStream other = engine.stream(random_request(engine, 5));
  engine.submit(random_request(engine, 6), [](const Output&) { throw std::runtime_error("gone"); });
  EXPECT_EQ(read_all(std::move(other)).finish, FinishReason::kLength);
  EXPECT_TRUE(engine.drain(60));
  EXPECT_EQ(engine.stats().cancelled, 1U);
}

TEST(Engine, NoTokensAreAPrompt) {
  Engine engine(shipped_model(1));
  const Output output = read_all(engine.stream(request_of(story_tokens(engine, 1, 200), 0)));
  EXPECT_EQ(output.finish, FinishReason::kLength);
  EXPECT_TRUE(output.tokens.empty());
  const Usage usage = read_all(engine.stream(request_of(story_tokens(engine, 1, 201), 1))).usage;
  EXPECT_EQ(usage.cached_tokens, 192);
}

TEST(Engine, TheContextsEndEndsTheText) {
  ModelOptions options = model_options(1);
  options.context = 128;
  Engine engine(Model::load(THALWEG_MODEL, options));
  const Output output = read_all(engine.stream(request_of(story_tokens(engine, 1, 120), -1)));
  EXPECT_EQ(output.finish, FinishReason::kLength);
  EXPECT_EQ(output.tokens.size(), 8U);
}

void expect_error(Engine& engine, const std::function<void(Request&)>& change, const std::string& message) {
  Request request = request_of(story_tokens(engine, 1, 10), 1);
  change(request);
  try {
    engine.stream(std::move(request));
    ADD_FAILURE() << "no error: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), message);
  }
}

TEST(Engine, BadRequestsAreRefusedByName) {
  Engine engine(shipped_model(1));
  const std::string last = std::to_string(engine.model().info().vocabulary - 1);
  expect_error(
      engine, [](Request& r) { r.prompt.clear(); }, "Engine: prompt: expected at least one token, got none");
  expect_error(
      engine, [](Request& r) { r.prompt[3] = -1; }, "Engine: prompt: expected ids from 0 to " + last + ", got -1");
  expect_error(
      engine, [](Request& r) { r.prompt.resize(8192, 1); },
      "Engine: prompt: expected fewer than 8192 tokens (ModelOptions::context), got 8192");
  expect_error(
      engine, [](Request& r) { r.boundaries = {11}; }, "Engine: boundaries: expected positions from 0 to 10, got 11");
  expect_error(
      engine, [](Request& r) { r.max_tokens = -2; }, "Engine: max_tokens: expected 0 or more, or -1, got -2");
  expect_error(
      engine, [](Request& r) { r.stop = {""}; }, "Engine: stop: expected texts of at least a byte, got an empty one");
  EXPECT_THROW(
      {
        Request request = request_of(story_tokens(engine, 1, 10), 1);
        request.sampling.top_p = 2.0F;
        engine.stream(std::move(request));
      },
      Error);
  EngineOptions options;
  options.prompt_share = 1;
  EXPECT_THROW(Engine(shipped_model(1), options), Error);
}

TEST(Engine, IsAskedByManyAtOnce) {
  Engine engine(shipped_model(4));
  std::vector<Output> expected;
  for (std::uint32_t i = 0; i < 4; ++i) expected.push_back(read_all(engine.stream(random_request(engine, i))));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (std::uint32_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::uint32_t which = (t + i) % 4;
        TokenStream stream = engine.stream(random_request(engine, which));
        if (i % 4 == 3) {
          stream.cancel();
          continue;
        }
        if (read_all(std::move(stream)).tokens != expected[which].tokens) ++wrong;
        engine.stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace thalweg
