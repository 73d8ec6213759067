// Results do not depend on how a text is split, on the rest of the batch, or on the number of threads.

#include <stdexcept>

#include "model/support.h"

namespace thalweg::model {
namespace {

struct File {
  TempFolder folder;
  TinySpec spec;
  std::string path;

  explicit File(DType dtype = DType::kF32) {
    spec.interval = 2;
    path = folder / "model.gguf";
    TinyModel(spec).write_gguf(path, dtype);
  }
};

TEST(Chunks, OfAnySizeGiveTheSameText) {
  const File file;
  const std::vector<std::int32_t> tokens = random_tokens(300, file.spec.vocabulary, 3);
  Logits whole;
  for (int chunk : {512, 1, 7, 64, 100, 299}) {
    ModelOptions options = precise();
    options.prefill_chunk = chunk;
    Model model = Model::load(file.path, options);
    Sequence sequence = model.start();
    const Logits logits = logits_of_each(model, sequence, tokens);
    if (whole.empty()) whole = logits;
    EXPECT_LT(difference(logits, whole), 2e-5) << "chunks of " << chunk;
    EXPECT_TRUE(same_bits(sequence.logits(), logits.back()));
    EXPECT_TRUE(std::equal(sequence.tokens().begin(), sequence.tokens().end(), tokens.begin(), tokens.end()));
  }
}

TEST(Chunks, SeveralCallsContinueASequence) {
  const File file;
  const std::vector<std::int32_t> tokens = random_tokens(700, file.spec.vocabulary, 4);  // the cache grows meanwhile
  Model model = Model::load(file.path, precise());
  Sequence sequence = model.start();
  const Logits whole = logits_of_each(model, sequence, tokens);
  sequence.clear();
  EXPECT_TRUE(sequence.tokens().empty());
  EXPECT_TRUE(sequence.logits().empty());
  std::size_t begin = 0;
  for (std::size_t count : {std::size_t{5}, std::size_t{0}, std::size_t{1}, std::size_t{494}, std::size_t{200}}) {
    model.prefill(sequence, std::span(tokens).subspan(begin, count));
    begin += count;
    EXPECT_LT(difference(copy(sequence.logits()), whole[begin - 1]), 2e-5) << "after " << begin;
  }
  EXPECT_EQ(begin, tokens.size());
}

// Prompts of several lengths, then steps together: bit-identical to each sequence alone.
void compare_with_alone(const ModelOptions& options, DType dtype) {
  const File file(dtype);
  Model model = Model::load(file.path, options);
  const std::vector<std::size_t> lengths = {1, 70, 0, 33, 130};
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::size_t n = 0; n < lengths.size(); ++n)
    prompts.push_back(random_tokens(lengths[n], file.spec.vocabulary, n));
  const std::vector<std::int32_t> next = random_tokens(12, file.spec.vocabulary, 77);

  Logits alone;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    Sequence sequence = model.start();
    model.prefill(sequence, prompt);
    alone.push_back(copy(sequence.logits()));
    for (std::int32_t token : next) model.step(sequence, token);
    alone.push_back(copy(sequence.logits()));
  }

  std::vector<Sequence> sequences;
  for (std::size_t n = 0; n < prompts.size(); ++n) sequences.push_back(model.start());
  std::vector<SequenceInput> batch;
  std::vector<Sequence*> all;
  for (std::size_t n = prompts.size(); n-- > 0;) {
    batch.push_back({&sequences[n], prompts[n]});
    all.push_back(&sequences[n]);
  }
  model.prefill(batch);
  for (std::size_t n = 0; n < prompts.size(); ++n) {
    EXPECT_TRUE(same_bits(sequences[n].logits(), alone[2 * n])) << "prompt of " << lengths[n];
  }
  for (std::int32_t token : next) model.step(all, std::vector<std::int32_t>(all.size(), token));
  for (std::size_t n = 0; n < prompts.size(); ++n) {
    EXPECT_TRUE(same_bits(sequences[n].logits(), alone[2 * n + 1])) << "steps after " << lengths[n];
  }
}

TEST(Batches, GiveEachSequenceWhatItGetsAlone) { compare_with_alone(precise(5), DType::kF32); }

TEST(Batches, TooWithSmallChunks) {
  ModelOptions options = precise(5);
  options.prefill_chunk = 48;
  compare_with_alone(options, DType::kF32);
}

TEST(Batches, TooWithQuantisedWeights) {
  ModelOptions options = precise(5);
  options.exact = false;
  options.kv_dtype = DType::kF16;
  compare_with_alone(options, DType::kQ8_0);
}

TEST(Batches, TooOnAGpuThatMustNotChangeBits) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  for (const DType dtype : {DType::kF32, DType::kQ8_0}) {
    ModelOptions options = on_gpu(5);
    options.batch_invariant = true;
    compare_with_alone(options, dtype);
  }
}

TEST(Batches, OfSequencesThatCannotBe) {
  const File file;
  Model model = Model::load(file.path, precise(2));
  Model other = Model::load(file.path, precise());
  Sequence a = model.start();
  Sequence b = model.start();
  Sequence stranger = other.start();
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  model.prefill(a, tokens);
  const std::vector<float> before = copy(a.logits());
  expect_error([&] { model.start(); }, {"sequences", "at most 2"});
  expect_error([&] { model.prefill(stranger, tokens); }, {"another"});
  expect_error([&] { model.prefill(a, std::vector<std::int32_t>{4, file.spec.vocabulary}); }, {"tokens", "101"});
  expect_error([&] { model.prefill(a, std::vector<std::int32_t>{4, -1}); }, {"tokens", "-1"});
  expect_error([&] { model.prefill(a, std::vector<std::int32_t>(1022, 1)); }, {"1024", "1025"});
  const std::vector<SequenceInput> twice = {{&a, tokens}, {&a, tokens}};
  expect_error([&] { model.prefill(twice); }, {"twice"});
  const std::vector<std::int32_t> bad = {-5};
  const std::vector<SequenceInput> second_bad = {{&a, tokens}, {&b, bad}};
  expect_error([&] { model.prefill(second_bad); }, {"tokens", "-5"});
  EXPECT_TRUE(same_bits(a.logits(), before));
  EXPECT_EQ(a.tokens().size(), 3U);
  Sequence moved = std::move(b);
  EXPECT_TRUE(moved.logits().empty());
  moved = Sequence();  // releases the slot
  EXPECT_NO_THROW(moved = model.start());
  expect_error([&] { model.sample(moved, {}); }, {"at least one token"});
}

// Beyond the 512 positions of one attention block, with the kernels for many and for few tokens.
TEST(Batches, OfLongTextsToo) {
  const File file;
  ModelOptions options = precise(40);
  options.kv_dtype = DType::kF16;
  Model model = Model::load(file.path, options);
  const std::vector<std::int32_t> tokens = random_tokens(700, file.spec.vocabulary, 21);
  const std::vector<std::int32_t> next = random_tokens(4, file.spec.vocabulary, 22);
  std::vector<float> alone;
  for (int company : {0, 1, 39}) {
    Sequence sequence = model.start();
    std::vector<Sequence> others;
    std::vector<SequenceInput> batch = {{&sequence, tokens}};
    std::vector<Sequence*> all = {&sequence};
    for (int i = 0; i < company; ++i) others.push_back(model.start());
    for (Sequence& other : others) {
      batch.push_back({&other, std::span(tokens).first(3)});
      all.push_back(&other);
    }
    model.prefill(batch);
    for (std::int32_t token : next) model.step(all, std::vector<std::int32_t>(all.size(), token));
    if (alone.empty()) alone = copy(sequence.logits());
    EXPECT_TRUE(same_bits(sequence.logits(), alone)) << "with " << company << " others";
  }
}

TEST(Prefill, ThatIsStoppedNeverWas) {
  const File file;
  ModelOptions options = precise(2);
  options.prefill_chunk = 50;
  Model model = Model::load(file.path, options);
  const std::vector<std::int32_t> tokens = random_tokens(180, file.spec.vocabulary, 14);
  Sequence stopped = model.start();
  Sequence untouched = model.start();
  for (Sequence* sequence : {&stopped, &untouched}) model.prefill(*sequence, std::span(tokens).first(30));
  for (int most : {0, 1, 2}) {
    int calls = 0;
    EXPECT_FALSE(model.prefill(stopped, tokens, [&] { return calls++ < most; }));
    EXPECT_EQ(calls, most + 1);
    EXPECT_EQ(stopped.tokens().size(), 30U);
    EXPECT_TRUE(same_bits(stopped.logits(), copy(untouched.logits())));
    const Generated none = model.generate(stopped, tokens, {}, 5, {}, [] { return false; });
    EXPECT_EQ(none.reason, StopReason::kCaller);
    EXPECT_EQ(none.prompt_tokens, 0);
    EXPECT_TRUE(none.tokens.empty());
  }
  EXPECT_TRUE(model.prefill(stopped, tokens, [] { return true; }));
  EXPECT_TRUE(model.prefill(untouched, tokens));
  EXPECT_TRUE(same_bits(stopped.logits(), copy(untouched.logits())));
  // With one chunk the callback is never called.
  EXPECT_TRUE(model.prefill(stopped, std::span(tokens).first(20), [] { return false; }));
}

TEST(Prefill, ThatAnErrorEndsLeavesASequenceThatSaysSo) {
  const File file;
  Model model = Model::load(file.path, precise(2));
  const std::vector<std::int32_t> tokens = random_tokens(20, file.spec.vocabulary, 15);
  Sequence sequence = model.start();
  Sequence other = model.start();
  model.prefill(sequence, tokens);
  const std::vector<float> right = copy(sequence.logits());
  const std::string path = file.folder / "text.session";
  sequence.save(path);
  const auto fail = [&] {
    EXPECT_THROW(model.prefill_each(sequence, tokens,
                                    [](std::int64_t index, std::span<const float>) {
                                      if (index == 7) throw std::runtime_error("enough");
                                    }),
                 std::runtime_error);
  };
  fail();
  expect_error([&] { model.step(sequence, 1); }, {"state", "clear() or restore()"});
  expect_error([&] { model.sample(sequence, {}); }, {"state", "clear() or restore()"});
  expect_error([&] { sequence.save(file.folder / "other.session"); }, {"state", "clear() or restore()"});
  expect_error([&] { sequence.tokens(); }, {"state"});
  expect_error([&] { sequence.logits(); }, {"state"});
  EXPECT_NO_THROW(model.prefill(other, tokens));  // other sequences are not affected
  EXPECT_TRUE(same_bits(other.logits(), right));
  sequence.restore(path);
  EXPECT_TRUE(same_bits(sequence.logits(), right));
  fail();
  sequence.clear();
  model.prefill(sequence, tokens);
  EXPECT_TRUE(same_bits(sequence.logits(), right));
}

TEST(Slots, AreFreshWhenTheyAreTakenAgain) {
  const File file;
  const std::vector<std::int32_t> tokens = random_tokens(80, file.spec.vocabulary, 6);
  Model model = Model::load(file.path, precise());
  std::vector<float> first;
  for (int round = 0; round < 3; ++round) {
    Sequence sequence = model.start();
    model.prefill(sequence, tokens);
    if (first.empty()) first = copy(sequence.logits());
    EXPECT_TRUE(same_bits(sequence.logits(), first));
  }
}

TEST(Threads, GiveTheSameBits) {
  const OnAllThreads small_tasks_too;
  const File file(DType::kQ8_0);
  const std::vector<std::int32_t> tokens = random_tokens(150, file.spec.vocabulary, 8);
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    ModelOptions options = precise();
    options.threads = threads;
    options.exact = false;
    Model model = Model::load(file.path, options);
    EXPECT_EQ(model.threads(), threads);
    Sequence sequence = model.start();
    model.prefill(sequence, tokens);
    for (std::int32_t token : {5, 6, 7}) model.step(sequence, token);
    if (first.empty()) first = copy(sequence.logits());
    EXPECT_TRUE(same_bits(sequence.logits(), first)) << threads << " threads";
  }
}

TEST(Scores, AreLogProbabilitiesOfWhatFollows) {
  const File file;
  const std::vector<std::int32_t> tokens = random_tokens(50, file.spec.vocabulary, 10);
  Model model = Model::load(file.path, precise());
  Sequence sequence = model.start();
  const Logits logits = logits_of_each(model, sequence, tokens);
  sequence.clear();
  const std::vector<double> scores = model.score(sequence, tokens);
  ASSERT_EQ(scores.size(), tokens.size() - 1);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    double sum = 0;
    for (float logit : logits[i]) sum += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(std::exp(scores[i]),
                std::exp(static_cast<double>(logits[i][static_cast<std::size_t>(tokens[i + 1])])) / sum, 1e-9);
  }
}

}  // namespace
}  // namespace thalweg::model
