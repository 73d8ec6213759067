// Drafts by the MTP layer in an engine: the same answers, alone, in company, and where a prompt's beginning comes from
// the prefix cache.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/outputs.h"
#include "model/tiny_model.h"
#include "thalweg/engine.h"

namespace thalweg {
namespace {

constexpr int kSequences = 4;

class MtpEngine : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("thalweg-mtp-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    model::TinySpec spec;
    spec.architecture = GetParam();
    if (spec.architecture == "qwen35") spec.experts = 0;
    spec.interval = 2;
    spec.vocabulary = 300;
    model::TinyModel tiny(spec);
    tiny.make_predictable();
    tiny.with_tokenizer = true;
    tiny.write_gguf((folder_ / "model.gguf").string());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Engine engine_with(DraftMode draft) const {
    ModelOptions options;
    options.device = kCpu;
    options.threads = 2;
    options.context = 400;
    options.sequences = kSequences;
    options.draft = draft;
    EngineOptions engine;
    engine.cache_dir = (folder_ / ("cache-" + std::to_string(static_cast<int>(draft)))).string();
    return Engine(Model::load((folder_ / "model.gguf").string(), options), engine);
  }

  std::filesystem::path folder_;
};

Request request_of(int number) {
  Request request;
  request.prompt = model::random_tokens(static_cast<std::size_t>(20 + 17 * (number % 5)), 250, 3 + number % 2);
  request.max_tokens = 1 + 29 * number % 90;
  request.ignore_end = true;
  if (number % 3 == 0) request.logprobs = 1;
  if (number % 2 == 1) request.sampling.temperature = 0.15F;
  if (number % 6 == 5) request.sampling.repeat_penalty = 1.1F;
  request.sampling.seed = static_cast<std::uint64_t>(number);
  return request;
}

TEST_P(MtpEngine, GivesTheSameAnswersInCompany) {
  constexpr int kRequests = 13;
  std::vector<Output> plain;
  {
    Engine engine = engine_with(DraftMode::kOff);
    for (int i = 0; i < kRequests; ++i) plain.push_back(read_all(engine.stream(request_of(i))));
  }
  for (const DraftMode mode : {DraftMode::kMtp, DraftMode::kAuto}) {
    Engine engine = engine_with(mode);
    std::vector<TokenStream> streams;
    for (int i = 0; i < kRequests; ++i) streams.push_back(engine.stream(request_of(i)));
    std::int64_t drafts = 0;
    std::int64_t accepted = 0;
    for (int i = 0; i < kRequests; ++i) {
      const Output output = read_all(std::move(streams[static_cast<std::size_t>(i)]));
      expect_same(output, plain[static_cast<std::size_t>(i)], i);
      drafts += output.usage.draft_tokens;
      accepted += output.usage.accepted_tokens;
    }
    if (mode == DraftMode::kAuto) continue;
    EXPECT_GT(accepted, 50);
    EXPECT_GT(drafts, accepted + 10);
  }
}

// What the cache keeps of a prompt, in memory and on the disk, makes the drafts of a prompt that was run.
TEST_P(MtpEngine, DraftsAfterACachedPromptAreThoseAfterOneThatRan) {
  const auto ask = [](Engine& engine) {
    Request request = request_of(4);
    request.max_tokens = 60;
    request.sampling.temperature = 0.15F;
    request.logprobs = 0;
    return read_all(engine.stream(std::move(request)));
  };
  Output first;
  {
    Engine engine = engine_with(DraftMode::kMtp);
    first = ask(engine);
    EXPECT_EQ(first.usage.cached_tokens, 0);
    const Output again = ask(engine);
    EXPECT_GT(again.usage.cached_tokens, 0);
    expect_same(again, first, 1);
    EXPECT_EQ(again.usage.draft_tokens, first.usage.draft_tokens);
    EXPECT_EQ(again.usage.accepted_tokens, first.usage.accepted_tokens);
  }
  Engine engine = engine_with(DraftMode::kMtp);
  const Output from_disk = ask(engine);
  EXPECT_GT(from_disk.usage.cached_tokens, 0);
  expect_same(from_disk, first, 2);
  EXPECT_EQ(from_disk.usage.draft_tokens, first.usage.draft_tokens);
  EXPECT_EQ(from_disk.usage.accepted_tokens, first.usage.accepted_tokens);
  EXPECT_GT(first.usage.accepted_tokens, 5);
}

INSTANTIATE_TEST_SUITE_P(Architectures, MtpEngine, testing::Values("qwen3next", "qwen35", "qwen35moe"));

}  // namespace
}  // namespace thalweg
