// Whole texts: their end, their seed, and their callbacks.

#include "model/support.h"

namespace thalweg::model {
namespace {

struct File {
  TempFolder folder;
  TinySpec spec;
  std::string path = folder / "model.gguf";

  explicit File(bool with_tokenizer = false) {
    spec.interval = 2;
    spec.vocabulary = with_tokenizer ? 262 : 101;
    TinyModel tiny(spec);
    tiny.with_tokenizer = with_tokenizer;
    tiny.write_gguf(path);
  }
};

Sampling warm(std::uint64_t seed) {
  Sampling sampling;
  sampling.temperature = 1.5F;
  sampling.seed = seed;
  return sampling;
}

TEST(Generate, TakesTheLikeliestTokenEachTime) {
  const File file;
  Model model = Model::load(file.path, precise(2));
  const std::vector<std::int32_t> prompt = random_tokens(20, file.spec.vocabulary, 1);
  Sequence sequence = model.start();
  const Generated result = model.generate(sequence, prompt, {}, 30);
  EXPECT_EQ(result.prompt_tokens, 20);
  EXPECT_EQ(result.steps, static_cast<std::int64_t>(result.tokens.size()));
  EXPECT_EQ(sequence.tokens().size(), 20 + result.tokens.size());

  Sequence by_hand = model.start();
  model.prefill(by_hand, prompt);
  for (std::int32_t token : result.tokens) {
    const auto logits = by_hand.logits();
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    model.step(by_hand, token);
  }
  EXPECT_TRUE(same_bits(by_hand.logits(), sequence.logits()));
  if (result.reason == StopReason::kEndToken) {
    EXPECT_TRUE(model.is_end_token(model.sample(by_hand, {})));
  } else {
    EXPECT_EQ(result.tokens.size(), 30U);
  }
}

TEST(Generate, ASeedGivesTheSameTextOnAnyNumberOfThreads) {
  const OnAllThreads small_tasks_too;
  const File file;
  const std::vector<std::int32_t> prompt = random_tokens(20, file.spec.vocabulary, 1);
  std::vector<std::vector<std::int32_t>> texts;
  for (int threads : {1, 2, 3}) {
    ModelOptions options = precise();
    options.threads = threads;
    Model model = Model::load(file.path, options);
    for (std::uint64_t seed : {7U, 7U, 8U}) {
      Sequence sequence = model.start();
      texts.push_back(model.generate(sequence, prompt, warm(seed), 25).tokens);
    }
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i] == texts[0], i % 3 != 2) << i;
  }
}

TEST(Generate, GoesOnAfterASessionAsIfNothingHadBeen) {
  const File file;
  Model model = Model::load(file.path, precise(2));
  Sampling sampling = warm(5);
  sampling.repeat_penalty = 1.1F;
  const std::vector<std::int32_t> prompt = random_tokens(20, file.spec.vocabulary, 2);
  Sequence whole = model.start();
  const Generated all = model.generate(whole, prompt, sampling, 24);
  Sequence part = model.start();
  std::vector<std::int32_t> tokens = model.generate(part, prompt, sampling, 10).tokens;
  part.save(file.folder / "text.session");
  part.clear();
  part.restore(file.folder / "text.session");
  if (tokens.size() == 10) {
    const Generated rest = model.generate(part, {}, sampling, 14);
    tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(rest.reason, all.reason);
  }
  EXPECT_EQ(tokens, all.tokens);
}

TEST(Generate, EndsAtTheEndTokenAndAtTheContext) {
  const File file;
  ModelOptions options = precise();
  options.context = 60;
  Model model = Model::load(file.path, options);
  bool ended = false;
  bool full = false;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Sequence sequence = model.start();
    const Generated result = model.generate(sequence, std::vector<std::int32_t>{1, 2}, warm(seed), 1000);
    for (std::int32_t token : result.tokens) EXPECT_FALSE(model.is_end_token(token));
    ended = ended || result.reason == StopReason::kEndToken;
    if (result.reason == StopReason::kContext) {
      full = true;
      EXPECT_EQ(sequence.tokens().size(), 60U);
    }
  }
  EXPECT_TRUE(ended);
  EXPECT_TRUE(full);
  Sequence empty = model.start();
  expect_error([&] { model.generate(empty, {}, {}, 5); }, {"prompt"});
  Sampling bad;
  bad.top_p = 2;
  expect_error([&] { model.generate(empty, std::vector<std::int32_t>{1}, bad, 5); }, {"top_p"});
  EXPECT_TRUE(empty.tokens().empty());
}

TEST(Generate, NeedsATokenizerOnlyForText) {
  const File file;
  Model model = Model::load(file.path, precise());
  EXPECT_FALSE(model.info().has_tokenizer);
  Sequence sequence = model.start();
  EXPECT_NO_THROW(model.generate(sequence, std::vector<std::int32_t>{1}, {}, 2));
  expect_error([&] { model.tokenize("text"); }, {"tokenizer"});
  expect_error([&] { model.generate(sequence, {}, {}, 2, [](std::string_view) { return true; }); }, {"tokenizer"});
}

TEST(Generate, RunsOnTokenIdsWhereTheFileSaysThatItHasNoTokenizer) {
  const TempFolder folder;
  const std::string path = folder / "model.gguf";
  const std::vector<std::int32_t> prompt = {3, 1, 4};
  std::vector<std::int32_t> expected;
  for (const char* tokenizer : {"", "none", "no_vocab"}) {
    TinyModel tiny(TinySpec{});
    tiny.tokenizer_model = tokenizer;
    tiny.write_gguf(path);
    Model model = Model::load(path, precise());
    EXPECT_FALSE(model.info().has_tokenizer) << tokenizer;
    EXPECT_EQ(model.info().end_tokens, std::vector<std::int32_t>{0});
    Sequence sequence = model.start();
    const std::vector<std::int32_t> tokens = model.generate(sequence, prompt, {}, 4).tokens;
    if (expected.empty()) expected = tokens;
    EXPECT_EQ(tokens, expected) << tokenizer;
    expect_error([&] { model.tokenize("text"); }, {"model.gguf", "tokenizer", "token ids only"});
    expect_error([&] { model.detokenize(prompt); }, {"token ids only"});
    expect_error([&] { model.chat_prompt(std::vector<ChatMessage>{{"user", "hello"}}); }, {"tokenizer"});
  }
  TinyModel other(TinySpec{});
  other.tokenizer_model = "llama";
  other.write_gguf(path);
  expect_error([&] { Model::load(path, precise()); }, {"tokenizer.ggml.model", "no_vocab", "llama"});
}

TEST(Generate, ShouldContinueStopsBetweenTokens) {
  const File file;
  Model model = Model::load(file.path, precise());
  Sequence sequence = model.start();
  int calls = 0;
  const Generated stopped =
      model.generate(sequence, std::vector<std::int32_t>{1}, {}, 10, {}, [&] { return ++calls <= 3; });
  EXPECT_LE(stopped.tokens.size(), 3U);
  EXPECT_TRUE(stopped.reason == StopReason::kCaller || stopped.reason == StopReason::kEndToken);
}

TEST(Generate, ReportsWholeCharacters) {
  const File file(true);
  Model model = Model::load(file.path, precise());
  EXPECT_TRUE(model.info().has_tokenizer);
  const std::vector<std::int32_t> prompt = model.tokenize("caf\xC3\xA9<|im_end|>");
  EXPECT_EQ(prompt.size(), 6U);
  EXPECT_TRUE(model.is_end_token(prompt.back()));
  EXPECT_EQ(model.tokenize("<|im_end|>", false).size(), 10U);
  EXPECT_EQ(model.detokenize(std::span(prompt).first(5)), "caf\xC3\xA9");
  EXPECT_EQ(model.token_bytes(prompt[3]), "\xC3");
  std::size_t characters = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Sequence sequence = model.start();
    std::string text;
    const Generated result = model.generate(sequence, prompt, warm(seed), 40, [&](std::string_view bytes) {
      EXPECT_FALSE(bytes.empty());
      EXPECT_NE(static_cast<unsigned char>(bytes[0]) & 0xC0U, 0x80U) << "the middle of a character";
      text += bytes;
      return true;
    });
    characters += text.size();
    EXPECT_GE(text.size(), result.tokens.size() / 4);
  }
  EXPECT_GT(characters, 100U);
  Sequence sequence = model.start();
  int heard = 0;
  const Generated stopped =
      model.generate(sequence, prompt, warm(3), 100, [&](std::string_view) { return ++heard < 3; });
  EXPECT_EQ(heard, 3);
  EXPECT_EQ(stopped.reason, StopReason::kCaller);
  EXPECT_EQ(sequence.tokens().size(), prompt.size() + stopped.tokens.size());
}

}  // namespace
}  // namespace thalweg::model
