// The engine with a model on a GPU against one on the CPU: texts, company, the prefix cache, cancelling. Skipped
// without a GPU. In f32 throughout, so that sums in another order do not change a text whose margins are those of real
// answers.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/outputs.h"
#include "thalweg/backend.h"
#include "thalweg/engine.h"
#include "thalweg/grammar.h"

namespace thalweg {
namespace {

bool has_gpu() {
  for (const BackendInfo& backend : backends()) {
    if (backend.type == DeviceType::kCuda && backend.available) return true;
  }
  return false;
}

#define NEEDS_GPU() \
  if (!has_gpu()) GTEST_SKIP() << "no GPU"

Model shipped_model(DeviceType device, int sequences, DraftMode draft = DraftMode::kOff) {
  ModelOptions options;
  options.draft = draft;
  options.device = Device{device, 0};
  options.context = 4096;
  options.sequences = sequences;
  options.exact = true;
  return Model::load(THALWEG_MODEL, options);
}

constexpr std::string_view kQuestions[] = {
    "Where is the ball?", "Where is John?", "Where is the apple?", "What is in the kitchen?", "Where is Mary?",
};

std::string prompt_of(int which, int sentences) {
  constexpr std::string_view kSentences[] = {
      "John went to the kitchen. ",    "Mary took the ball to the garden. ",
      "Daniel moved to the office. ",  "Sandra put the apple there. ",
      "Mary went to the hall. ",       "John put the milk in the kitchen. ",
      "Daniel went to the bathroom. ",
  };
  std::string text;
  for (int i = 0; i < sentences; ++i)
    text += kSentences[static_cast<std::size_t>(i * 5 + which) % std::size(kSentences)];
  return text.append(kQuestions[static_cast<std::size_t>(which) % std::size(kQuestions)]);
}

Request request_of(const Engine& engine, int which, bool logprobs = false) {
  Request request;
  request.prompt = engine.model().tokenize(prompt_of(which, 4 + 9 * which));
  request.max_tokens = 24;
  if (logprobs) request.logprobs = 2;
  return request;
}

constexpr int kRequests = 10;

std::vector<Output> outputs_of(Engine& engine, bool together, bool logprobs = false) {
  std::vector<TokenStream> streams;
  std::vector<Output> outputs;
  for (int i = 0; i < kRequests; ++i) {
    streams.push_back(engine.stream(request_of(engine, i, logprobs)));
    if (!together) outputs.push_back(read_all(std::move(streams.back())));
  }
  for (int i = 0; together && i < kRequests; ++i)
    outputs.push_back(read_all(std::move(streams[static_cast<std::size_t>(i)])));
  return outputs;
}

void expect_same(const std::vector<Output>& given, const std::vector<Output>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(given[i].text, expected[i].text) << i;
    EXPECT_EQ(given[i].finish, expected[i].finish) << i << " " << given[i].error;
    EXPECT_EQ(given[i].usage.generated_tokens, expected[i].usage.generated_tokens) << i;
  }
}

TEST(EngineOnDevice, AnswersAreTheCpusAloneAndInCompany) {
  NEEDS_GPU();
  Engine cpu(shipped_model(DeviceType::kCpu, 4));
  const std::vector<Output> expected = outputs_of(cpu, true);
  for (const int sequences : {1, 4, 16}) {
    Engine gpu(shipped_model(DeviceType::kCuda, sequences));
    for (const bool together : {false, true}) {
      SCOPED_TRACE(std::to_string(sequences) + (together ? " together" : " one by one"));
      expect_same(outputs_of(gpu, together), expected);
    }
    // The second time, prompts came from the cache.
    EXPECT_GT(gpu.stats().prompt_tokens_cached, gpu.stats().prompt_tokens / 3);
  }
}

TEST(EngineOnDevice, AnswersWithDraftsAreTheCpus) {
  NEEDS_GPU();
  Engine cpu(shipped_model(DeviceType::kCpu, 4));
  const std::vector<Output> expected = outputs_of(cpu, true);
  for (const DraftMode draft : {DraftMode::kLookup, DraftMode::kAuto}) {
    Engine gpu(shipped_model(DeviceType::kCuda, 4, draft));
    for (const bool together : {false, true}) {
      SCOPED_TRACE(together ? "together" : "one by one");
      expect_same(outputs_of(gpu, together), expected);
    }
    if (draft == DraftMode::kLookup) {
      EXPECT_GT(gpu.stats().accepted_tokens, 0U);
    }
    // Some need their logits here, in the company of others that do not.
    const std::vector<Output> with_logprobs = outputs_of(gpu, true, true);
    expect_same(with_logprobs, expected);
  }
}

TEST(EngineOnDevice, LogprobsAreTheCpus) {
  NEEDS_GPU();
  Engine cpu(shipped_model(DeviceType::kCpu, 4));
  Engine gpu(shipped_model(DeviceType::kCuda, 4));
  const std::vector<Output> expected = outputs_of(cpu, true, true);
  for (int turn = 0; turn < 2; ++turn) {
    const std::vector<Output> given = outputs_of(gpu, true, true);
    expect_same(given, expected);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(given[i].logprobs.size(), expected[i].logprobs.size());
      for (std::size_t k = 0; k < expected[i].logprobs.size(); ++k) {
        EXPECT_NEAR(given[i].logprobs[k].chosen.logprob, expected[i].logprobs[k].chosen.logprob, 2e-2) << i << " " << k;
      }
    }
  }
}

// Ends its request after a few tokens: by an exception, or by a mask without a token.
class FailingConstraint : public TokenConstraint {
 public:
  FailingConstraint(std::size_t words, bool throws) : mask_(words, ~0U), throws_(throws) {}

  std::span<const std::uint32_t> allowed() override { return mask_; }
  void accept(std::int32_t) override {
    if (++tokens_ < 3) return;
    if (throws_) throw std::runtime_error("this constraint ends");
    mask_.assign(mask_.size(), 0);
  }

 private:
  std::vector<std::uint32_t> mask_;
  bool throws_;
  int tokens_ = 0;
};

// Every other one with a schema, some drawn.
std::vector<Output> constrained_outputs_of(Engine& engine) {
  const Grammar grammar = Grammar::json_schema(
      R"({"type": "object", "properties": {"place": {"type": "string", "maxLength": 12}, "count": {"type": "integer",
          "minimum": 10, "maximum": 99}}, "required": ["place", "count"]})");
  std::vector<TokenStream> streams;
  for (int i = 0; i < kRequests; ++i) {
    Request request = request_of(engine, i);
    if (i % 4 == 2) request.sampling.temperature = 0.8F;
    if (i % 3 == 2) request.sampling.repeat_penalty = 1.2F;
    request.sampling.seed = static_cast<std::uint64_t>(i);
    if (i % 2 == 0) request.constraint = engine.constraint(grammar);
    if (i % 2 == 0) request.max_tokens = 60;
    streams.push_back(engine.stream(std::move(request)));
  }
  std::vector<Output> outputs;
  for (TokenStream& stream : streams) outputs.push_back(read_all(std::move(stream)));
  return outputs;
}

TEST(EngineOnDevice, ConstrainedAnswersAreTheCpus) {
  NEEDS_GPU();
  Engine cpu(shipped_model(DeviceType::kCpu, 4));
  const std::vector<Output> expected = constrained_outputs_of(cpu);
  for (std::size_t i = 0; i < expected.size(); i += 2) {
    EXPECT_NE(expected[i].text.find("\"place\""), std::string::npos) << expected[i].text;
  }
  for (const int sequences : {1, 4, 16}) {
    SCOPED_TRACE(sequences);
    Engine gpu(shipped_model(DeviceType::kCuda, sequences));
    expect_same(constrained_outputs_of(gpu), expected);
    expect_same(constrained_outputs_of(gpu), expected);
  }
  Engine gpu(shipped_model(DeviceType::kCuda, 4, DraftMode::kLookup));
  expect_same(constrained_outputs_of(gpu), expected);
}

TEST(EngineOnDevice, AConstraintThatFailsEndsItsRequestAlone) {
  NEEDS_GPU();
  Engine gpu(shipped_model(DeviceType::kCuda, 4));
  const Output expected = read_all(gpu.stream(request_of(gpu, 1)));
  const auto words = static_cast<std::size_t>(gpu.model().info().vocabulary + 31) / 32;
  for (const bool throws : {true, false}) {
    Request failing = request_of(gpu, 2);
    failing.ignore_end = true;
    failing.constraint = std::make_unique<FailingConstraint>(words, throws);
    Request company = request_of(gpu, 1);
    company.ignore_end = true;
    company.max_tokens = expected.usage.generated_tokens;
    TokenStream stream = gpu.stream(std::move(company));
    const Output failed = read_all(gpu.stream(std::move(failing)));
    EXPECT_EQ(failed.finish, FinishReason::kError);
    EXPECT_NE(failed.error.find(throws ? "this constraint ends" : "a token that is allowed"), std::string::npos)
        << failed.error;
    const Output other = read_all(std::move(stream));
    EXPECT_EQ(other.error, "");
    EXPECT_EQ(other.text, expected.text);
  }
}

// Turns of conversations that take turns, with log-probabilities, one request at a time.
std::vector<Output> turns_of(Engine& engine) {
  constexpr int kTalks = 6;
  std::vector<std::string> talks(kTalks);
  std::vector<Output> outputs;
  for (int turn = 0; turn < 4; ++turn) {
    for (int talk = 0; talk < kTalks; ++talk) {
      std::string& text = talks[static_cast<std::size_t>(talk)];
      text += prompt_of(talk + turn, 20) + " ";
      Request request;
      request.prompt = engine.model().tokenize(text);
      request.max_tokens = 6;
      request.logprobs = 2;
      outputs.push_back(read_all(engine.stream(std::move(request))));
    }
  }
  return outputs;
}

TEST(EngineOnDevice, ThePrefixCacheGoesFromTheDeviceToTheHostAndBack) {
  NEEDS_GPU();
  for (const bool answers : {false, true}) {
    EngineOptions options;
    options.cache_answers = answers;
    options.cache_device_bytes = 0;
    std::vector<Output> expected;
    std::uint64_t cached = 0;
    {
      Engine host(shipped_model(DeviceType::kCuda, 2), options);
      expected = turns_of(host);
      cached = host.stats().prompt_tokens_cached;
      EXPECT_EQ(host.stats().cache_device_budget, 0U);
      EXPECT_EQ(host.stats().cache_evictions, 0U);
    }
    EXPECT_GT(cached, 0U);
    // Enough for all, or for a few checkpoints.
    for (const std::int64_t bytes : {std::int64_t{1} << 30, std::int64_t{12} << 20}) {
      SCOPED_TRACE(std::to_string(bytes) + (answers ? " with answers" : ""));
      options.cache_device_bytes = bytes;
      Engine device(shipped_model(DeviceType::kCuda, 2), options);
      const std::vector<Output> given = turns_of(device);
      expect_same(given, expected);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(given[i].usage.cached_tokens, expected[i].usage.cached_tokens) << i;
        for (std::size_t k = 0; k < expected[i].logprobs.size(); ++k) {  // the same bits were restored
          EXPECT_EQ(given[i].logprobs[k].chosen.logprob, expected[i].logprobs[k].chosen.logprob) << i << " " << k;
        }
      }
      EXPECT_TRUE(device.drain(60));  // what is kept of an answer is counted at the step's end
      const EngineStats stats = device.stats();
      EXPECT_EQ(stats.prompt_tokens_cached, cached);
      EXPECT_GT(stats.cache_device_bytes, 0U);
      EXPECT_LE(stats.cache_device_bytes, static_cast<std::uint64_t>(bytes));
      EXPECT_EQ(stats.cache_bytes > 0, bytes < 1 << 30);
      EXPECT_EQ(stats.cache_evictions, 0U);  // of either
    }
  }
}

TEST(EngineOnDevice, RequestsComeAndGoWhileOthersGenerate) {
  NEEDS_GPU();
  Engine cpu(shipped_model(DeviceType::kCpu, 4));
  const std::vector<Output> expected = outputs_of(cpu, true);
  Engine gpu(shipped_model(DeviceType::kCuda, 6));
  Request endless = request_of(gpu, 1);
  endless.max_tokens = -1;
  endless.ignore_end = true;
  TokenStream background = gpu.stream(std::move(endless));
  Output output;
  ASSERT_TRUE(background.next(output));
  std::vector<TokenStream> cancelled;
  for (int i = 0; i < 3; ++i) cancelled.push_back(gpu.stream(request_of(gpu, i + 3)));
  for (TokenStream& stream : cancelled) stream.cancel();
  expect_same(outputs_of(gpu, true), expected);
  expect_same(outputs_of(gpu, false), expected);
  background.cancel();
  EXPECT_EQ(read_all(std::move(background)).finish, FinishReason::kCancelled);
  EXPECT_EQ(gpu.stats().failed, 0U);
}

}  // namespace
}  // namespace thalweg
