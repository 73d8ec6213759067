// A model on a GPU against the same model on the CPU: logits, greedy tokens, batches, sessions. Skipped without a GPU.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "model/golden_file.h"
#include "model/support.h"
#include "thalweg/backend.h"

namespace thalweg::model {
namespace {

// kExact: f32 throughout, sums in another order.
constexpr double kExactBound = 2e-4;
// bf16 activations: relative to the range of the logits.
constexpr double kFastBound = 4e-2;
// A few codes of 8 bits, and keys, values and queries rounded to f16.
constexpr double kPackedBound = 4e-3;

#define NEEDS_GPU() \
  if (!has_gpu()) GTEST_SKIP() << "no GPU"

std::vector<TinySpec> specs() {
  TinySpec experts;
  TinySpec dense;
  dense.architecture = "qwen35";
  dense.experts = 0;
  TinySpec next;
  next.architecture = "qwen3next";
  next.value_heads = 2;
  TinySpec tied;
  tied.tied = true;
  tied.value_heads = 8;
  tied.interval = 2;
  return {experts, dense, next, tied};
}

std::vector<std::int32_t> some_tokens(std::int64_t count, int vocabulary, std::int64_t seed = 1) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>((i * 37 + seed * 11) % vocabulary));
  return tokens;
}

TEST(Device, LogitsAreTheCpus) {
  NEEDS_GPU();
  for (const TinySpec& spec : specs()) {
    SCOPED_TRACE(spec.architecture + " of " + std::to_string(spec.value_heads) + " value heads");
    const TempFolder folder;
    const std::string path = folder / "model.gguf";
    TinyModel(spec).write_gguf(path);
    Model cpu = Model::load(path, precise());
    Sequence expected = cpu.start();
    const std::vector<std::int32_t> tokens = some_tokens(150, spec.vocabulary);
    const Logits of_each = logits_of_each(cpu, expected, tokens);
    for (const bool exact : {true, false}) {
      Model gpu = Model::load(path, on_gpu(1, exact));
      EXPECT_NE(gpu.info().device.find("cuda"), std::string::npos);
      Sequence sequence = gpu.start();
      // bf16 activations may choose another expert where two are close, which moves a token's logits far: most tokens
      // have to keep the bound, not the worst.
      const Logits given = logits_of_each(gpu, sequence, tokens);
      std::vector<double> differences;
      for (std::size_t i = 0; i < given.size(); ++i) differences.push_back(difference(given[i], of_each[i]));
      std::sort(differences.begin(), differences.end());
      const double all = exact ? differences.back() : differences[differences.size() * 8 / 10];
      sequence.clear();
      gpu.prefill(sequence, std::span(tokens).first(100));
      for (std::size_t i = 100; i < tokens.size(); ++i) gpu.step(sequence, tokens[i]);
      const double steps = difference(copy(sequence.logits()), of_each.back());
      EXPECT_LT(all, exact ? kExactBound : kFastBound);
      EXPECT_LT(steps, exact ? kExactBound : kFastBound);
    }
  }
}

// How far the logits of each token are from those of the CPU's exact run.
std::vector<double> differences_of(Model model, const std::vector<std::int32_t>& tokens, const Logits& expected) {
  Sequence sequence = model.start();
  const Logits given = logits_of_each(model, sequence, tokens);
  std::vector<double> differences;
  for (std::size_t i = 0; i < given.size(); ++i) differences.push_back(difference(given[i], expected[i]));
  return differences;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// A file of real size, as `thalweg synth --like Qwen3.5-35B-A3B` writes one: THALWEG_LARGE_MODEL names it.
// Where experts are chosen, a token goes to another one where two are close, and all tokens after it differ: the first
// token is compared to rounding, the others with what 8-bit activations change on the CPU.
TEST(Device, LogitsOfALargeFileAreTheCpus) {
  NEEDS_GPU();
  const char* path = std::getenv("THALWEG_LARGE_MODEL");
  if (path == nullptr) GTEST_SKIP() << "THALWEG_LARGE_MODEL names no file";
  std::vector<std::int32_t> tokens;
  Logits expected;
  std::vector<double> of_8_bits;
  bool may_reroute = false;
  {
    ModelOptions options = precise();
    options.threads = 0;
    Model cpu = Model::load(path, options);
    may_reroute = cpu.info().experts > 0;
    tokens = some_tokens(64, static_cast<int>(cpu.info().vocabulary));
    Sequence sequence = cpu.start();
    expected = logits_of_each(cpu, sequence, tokens);
    options.exact = false;
    of_8_bits = differences_of(Model::load(path, options), tokens, expected);
  }
  const auto print = [](const char* name, const std::vector<double>& differences) {
    std::printf("%s: the first token's logits differ by %.2g of their range, those of 64 by %.2g in the median\n", name,
                differences[0], median(differences));
  };
  print("CPU, 8-bit activations", of_8_bits);
  const std::vector<double> of_f32 = differences_of(Model::load(path, on_gpu(1, true)), tokens, expected);
  print("f32 activations", of_f32);
  EXPECT_LT(of_f32[0], kExactBound);
  EXPECT_LT(median(of_f32), may_reroute ? kFastBound : kExactBound);
  Model model = Model::load(path, on_gpu(1, false));
  const ModelInfo& info = model.info();
  const auto context = static_cast<std::uint64_t>(model.context());
  EXPECT_LE(info.device_bytes,
            info.weight_bytes + info.mtp_bytes + info.state_bytes + context * info.cache_token_bytes + 1'000'000'000);
  const std::vector<double> of_bf16 = differences_of(std::move(model), tokens, expected);
  print("bf16 activations", of_bf16);
  EXPECT_LT(median(of_bf16), may_reroute ? 1.5 * median(of_8_bits) : kFastBound);
}

// The kernels for whatever no other kernel takes.
bool is_last_resort(const OperationTime& time) {
  static const std::set<std::string> kNames = {"exact", "steps", "token_by_token", "plain", "block"};
  return kNames.contains(time.kernel) || (time.operation == "gated_rms_norm" && time.kernel == "rows_strided");
}

// Models whose widths are those of published ones, or smaller multiples of what the kernels for these take.
std::vector<TinySpec> specs_of_common_widths() {
  std::vector<TinySpec> result = specs();
  for (TinySpec& spec : result) {
    spec.layers = 2;
    spec.interval = 2;
    spec.hidden = spec.dense_hidden = spec.expert_hidden = spec.shared_hidden = spec.head_dim = 256;
    spec.key_dim = spec.value_dim = 128;
    spec.experts = spec.experts > 0 ? 16 : 0;
    spec.mtp = false;
  }
  return result;
}

TEST(Device, NoOperationOfAModelIsLeftToTheLastResort) {
  NEEDS_GPU();
  struct Work {
    std::int64_t tokens;
    std::int64_t each;
    std::int64_t context;
  };
  const std::vector<Work> works = {{1, 1, 64}, {8, 1, 64}, {64, 1, 64}, {100, 100, 0}, {512, 512, 0}};
  for (const TinySpec& spec : specs_of_common_widths()) {
    for (const DType type :
         {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
          DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kMXFP4, DType::kF16, DType::kBF16}) {
      const TempFolder folder;
      const std::string path = folder / "model.gguf";
      TinyModel(spec).write_gguf(path, type);
      Model model = Model::load(path, on_gpu(64));
      for (const Work& work : works) {
        for (const OperationTime& time : model.profile(work.tokens, work.each, work.context)) {
          EXPECT_FALSE(is_last_resort(time)) << spec.architecture << ", " << dtype_name(type) << ", " << work.tokens
                                             << " tokens: " << time.operation << " by " << time.kernel;
        }
      }
    }
  }
}

TEST(Device, GoldensOfTransformers) {
  NEEDS_GPU();
  const std::filesystem::path folder = std::filesystem::path(THALWEG_TEST_DIR) / "model" / "goldens";
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const GoldenFile goldens((entry.path() / "goldens.safetensors").string());
    for (const bool exact : {true, false}) {
      Model model = Model::load(entry.path().string(), on_gpu(1, exact));
      // With bf16 activations a token may go to another expert where two are close: then the whole text is another one.
      const bool may_reroute = !exact && model.info().experts > 0;
      std::vector<double> differences;
      for (const std::string& prompt : goldens.prompts()) {
        Sequence sequence = model.start();
        model.prefill(sequence, goldens.ids(prompt + ".ids"));
        differences.push_back(difference(copy(sequence.logits()), copy(goldens.numbers(prompt + ".logits"))));
        if (!may_reroute) compare_greedy(model, sequence, goldens, prompt, exact ? 1e-3 : kFastBound);
      }
      std::sort(differences.begin(), differences.end());
      EXPECT_LT(may_reroute ? differences[differences.size() / 2] : differences.back(),
                exact ? kExactBound : kFastBound);
    }
    ++models;
  }
  EXPECT_GE(models, 8);
}

struct Loaded {
  TempFolder folder;
  TinySpec spec;
  std::string path = folder / "model.gguf";
  Loaded() {
    spec.interval = 2;
    TinyModel(spec).write_gguf(path);
  }
};

TEST(Device, TheLoopDecodesAsStepsDo) {
  NEEDS_GPU();
  const Loaded file;
  Model model = Model::load(file.path, on_gpu(4));
  const std::vector<std::int32_t> prompt = some_tokens(30, file.spec.vocabulary);
  for (const float temperature : {0.0F, 0.9F}) {
    Sampling sampling;
    sampling.temperature = temperature;
    sampling.repeat_penalty = temperature > 0 ? 1.2F : 1.0F;
    sampling.seed = 7;
    Sequence looped = model.start();
    const Generated generated = model.generate(looped, prompt, sampling, 60);
    Sequence stepped = model.start();
    model.prefill(stepped, prompt);
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < generated.tokens.size(); ++i) {
      tokens.push_back(model.sample(stepped, sampling));
      model.step(stepped, tokens.back());
    }
    EXPECT_EQ(generated.tokens, tokens);
    EXPECT_TRUE(same_bits(looped.logits(), stepped.logits()));
    // Neither the tokens nor the state went further than the text.
    EXPECT_EQ(looped.tokens().size(), prompt.size() + generated.tokens.size());
    const std::vector<std::int32_t> more = some_tokens(5, file.spec.vocabulary, 3);
    model.prefill(looped, more);
    model.prefill(stepped, more);
    EXPECT_TRUE(same_bits(looped.logits(), stepped.logits()));
  }
}

TEST(Device, BatchesDecodeAsSequencesDoAlone) {
  NEEDS_GPU();
  const Loaded file;
  Model model = Model::load(file.path, on_gpu(6));
  std::vector<Sequence> sequences;
  std::vector<Sequence*> handles;
  std::vector<Sampling> sampling(5);
  for (std::size_t n = 0; n < 5; ++n) {
    sequences.push_back(model.start());
    sampling[n].temperature = n % 2 == 0 ? 0.0F : 1.1F;
    sampling[n].seed = n;
  }
  for (std::size_t n = 0; n < 5; ++n) {
    model.prefill(sequences[n], some_tokens(20 + 7 * static_cast<std::int64_t>(n), file.spec.vocabulary));
    handles.push_back(&sequences[n]);
  }
  std::vector<std::vector<std::int32_t>> texts(5);
  model.decode(handles, sampling, 25, [&](std::span<const std::int32_t> tokens) {
    for (std::size_t n = 0; n < 5; ++n) {
      if (tokens[n] >= 0) texts[n].push_back(tokens[n]);
    }
    return true;
  });
  std::size_t same = 0;
  for (std::size_t n = 0; n < 5; ++n) {
    Sequence alone = model.start();
    const Generated generated = model.generate(
        alone, some_tokens(20 + 7 * static_cast<std::int64_t>(n), file.spec.vocabulary), sampling[n], 25);
    same += generated.tokens == texts[n] ? 1 : 0;
    if (generated.tokens == texts[n]) {
      EXPECT_LT(difference(copy(alone.logits()), copy(sequences[n].logits())), kFastBound);
    }
  }
  EXPECT_GE(same, 4U);  // other kernels run for other sizes: a close call may go the other way
}

// A text that repeats itself, with differences, of few different tokens: some drafts are right, some are not.
std::vector<std::int32_t> repetitive(int vocabulary) {
  std::vector<std::int32_t> text;
  for (int i = 0; i < 5; ++i) {
    std::vector<std::int32_t> again = some_tokens(24, vocabulary, 5);
    again[static_cast<std::size_t>(5 * i + 3) % again.size()] = i % vocabulary;
    text.insert(text.end(), again.begin(), again.end());
  }
  return text;
}

// Whatever the text, the state must be the one that a prefill of it reaches: what was replayed, taken back, kept.
TEST(Device, DraftsLeaveTheStateOfTheText) {
  NEEDS_GPU();
  std::int64_t wrong = 0;
  for (TinySpec spec : specs()) {
    SCOPED_TRACE(spec.architecture + " of " + std::to_string(spec.value_heads) + " value heads");
    spec.vocabulary = 5;
    const TempFolder folder;
    const std::string plain = folder / "model.gguf";
    const std::string predictable = folder / "predictable.gguf";  // by its MTP layer
    TinyModel tiny(spec);
    tiny.write_gguf(plain);
    tiny.make_predictable();
    tiny.write_gguf(predictable);
    for (const auto& [exact, draft] : {std::pair(true, DraftMode::kLookup), std::pair(false, DraftMode::kLookup),
                                       std::pair(true, DraftMode::kMtp), std::pair(false, DraftMode::kMtp)}) {
      SCOPED_TRACE(std::string(draft == DraftMode::kMtp ? "mtp" : "lookup") + (exact ? " exact" : ""));
      ModelOptions options = on_gpu(2, exact);
      options.draft = draft;
      Model model = Model::load(draft == DraftMode::kMtp ? predictable : plain, options);
      for (const float temperature : {0.0F, 0.2F}) {
        Sampling sampling;
        sampling.temperature = temperature;
        sampling.seed = 3;
        // With a penalty tokens are chosen on the host.
        for (const float penalty : {1.0F, 1.02F}) {
          sampling.repeat_penalty = penalty;
          Sequence sequence = model.start();
          model.prefill(sequence, repetitive(spec.vocabulary));
          const DraftCounts before = model.draft_counts();
          Sequence* const sequences[] = {&sequence};
          std::size_t reported = 0;
          model.decode(
              sequences, std::span(&sampling, 1), 300, [&](std::span<const std::int32_t>) { return ++reported < 270; },
              {}, true);
          EXPECT_GT(model.draft_counts().accepted, before.accepted);
          wrong += model.draft_counts().drafts - before.drafts - (model.draft_counts().accepted - before.accepted);
          EXPECT_EQ(sequence.tokens().size(), repetitive(spec.vocabulary).size() + reported);
          Sequence fresh = model.start();
          model.prefill(fresh, std::vector<std::int32_t>(sequence.tokens().begin(), sequence.tokens().end()));
          // With bf16 activations a token may go to another expert where two are close.
          if (!exact && spec.experts > 0) continue;
          const double bound = exact ? kExactBound : kFastBound;
          EXPECT_LT(difference(copy(sequence.logits()), copy(fresh.logits())), bound) << temperature << " " << penalty;
          // Plain decoding finds the state where the tokens are, and so does a prefill.
          Sequence* const both[] = {&sequence, &fresh};
          const std::vector<Sampling> settings(2, sampling);
          model.decode(both, settings, 4, {}, {}, true);
          EXPECT_LT(difference(copy(sequence.logits()), copy(fresh.logits())), bound) << temperature << " " << penalty;
          const std::vector<std::int32_t> more = some_tokens(5, spec.vocabulary, 3);
          model.prefill(sequence, more);
          model.prefill(fresh, more);
          EXPECT_LT(difference(copy(sequence.logits()), copy(fresh.logits())), bound) << temperature << " " << penalty;
        }
      }
    }
  }
  EXPECT_GT(wrong, 0);
}

// The margin rule: with drafts other kernels run, whose sums have another order. So the text is the one without drafts
// up to the first token whose margin is within the bound of the arithmetic.
TEST(Device, DraftsKeepTheTextBeyondMargins) {
  NEEDS_GPU();
  TinySpec spec;
  spec.vocabulary = 5;
  const TempFolder folder;
  const std::string path = folder / "model.gguf";
  TinyModel(spec).write_gguf(path);
  ModelOptions options = on_gpu(1, true);
  Model plain = Model::load(path, options);
  options.draft = DraftMode::kLookup;
  Model drafted = Model::load(path, options);
  const auto text_of = [&](Model& model, Logits* logits) {
    Sequence sequence = model.start();
    model.prefill(sequence, repetitive(spec.vocabulary));
    Sequence* const sequences[] = {&sequence};
    const Sampling greedy;
    std::vector<std::int32_t> tokens;
    model.decode(
        sequences, std::span(&greedy, 1), 300,
        [&](std::span<const std::int32_t> next) {
          tokens.push_back(next.front());
          return true;
        },
        logits == nullptr
            ? std::function<void(std::size_t, std::int32_t, std::span<const float>)>()
            : [&](std::size_t, std::int32_t, std::span<const float> row) { logits->push_back(copy(row)); },
        true);
    return tokens;
  };
  Logits logits;
  const std::vector<std::int32_t> expected = text_of(plain, &logits);
  const std::vector<std::int32_t> given = text_of(drafted, nullptr);
  ASSERT_EQ(given.size(), expected.size());
  EXPECT_GT(drafted.draft_counts().accepted, 100);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (given[i] == expected[i]) continue;
    const auto [low, high] = std::minmax_element(logits[i].begin(), logits[i].end());
    const float margin = *high - logits[i][static_cast<std::size_t>(given[i])];
    EXPECT_LT(margin, 2 * kExactBound * (*high - *low)) << "token " << i;
    break;
  }
}

TEST(Device, VerifiesDraftsOfTheCaller) {
  NEEDS_GPU();
  const Loaded file;
  ModelOptions options = on_gpu(3, true);
  options.draft = DraftMode::kLookup;
  options.draft_max = 4;
  Model model = Model::load(file.path, options);
  const std::vector<Sampling> sampling(3);
  std::vector<Sequence> sequences;
  for (std::int64_t n = 0; n < 3; ++n) {
    sequences.push_back(model.start());
    model.prefill(sequences.back(), some_tokens(20 + n, file.spec.vocabulary, n));
  }
  // The right tokens of each, found step by step on a sequence of its own text.
  for (int round = 0; round < 6; ++round) {
    std::vector<std::vector<std::int32_t>> tokens(3);
    std::vector<std::int64_t> right(3);
    std::vector<SequenceInput> batch;
    for (std::size_t n = 0; n < 3; ++n) {
      Model other = Model::load(file.path, on_gpu(1, true));
      Sequence probe = other.start();
      other.prefill(probe, std::vector<std::int32_t>(sequences[n].tokens().begin(), sequences[n].tokens().end()));
      const std::size_t drafts = (n + static_cast<std::size_t>(round)) % 5;
      const std::size_t wrong_at = 1 + (n + 2 * static_cast<std::size_t>(round)) % 4;
      for (std::size_t i = 0; i <= drafts; ++i) {
        std::int32_t token = other.sample(probe, sampling[n]);
        if (i == wrong_at) token = (token + 1) % file.spec.vocabulary;
        tokens[n].push_back(token);
        other.step(probe, token);
      }
      right[n] = static_cast<std::int64_t>(std::min(drafts + 1, wrong_at));
      batch.push_back({&sequences[n], tokens[n]});
    }
    EXPECT_EQ(model.verify(batch, sampling), right) << "round " << round;
  }
  EXPECT_EQ(model.round_tokens(), 15);
  const std::vector<std::int32_t> many(6, 1);
  const SequenceInput input{&sequences[0], many};
  expect_error([&] { (void)model.verify(std::span(&input, 1), std::span(sampling).first(1)); },
               {"verify", "tokens", "at most 4 drafts", "6"});
}

void move_session(DType cache) {
  const Loaded file;
  const std::vector<std::int32_t> tokens = some_tokens(90, file.spec.vocabulary);
  ModelOptions host = precise();
  host.exact = false;
  host.kv_dtype = cache;
  ModelOptions device = on_gpu();
  device.kv_dtype = cache;
  Model cpu = Model::load(file.path, host);
  Model gpu = Model::load(file.path, device);
  Sequence there = gpu.start();
  gpu.prefill(there, tokens);
  there.save(file.folder / "session");
  Sequence here = cpu.start();
  here.restore(file.folder / "session");
  EXPECT_TRUE(same_bits(here.logits(), there.logits()));
  const std::vector<std::int32_t> more = some_tokens(20, file.spec.vocabulary, 5);
  cpu.prefill(here, more);
  gpu.prefill(there, more);
  EXPECT_LT(difference(copy(there.logits()), copy(here.logits())), kFastBound);
  here.save(file.folder / "back");
  there.restore(file.folder / "back");
  EXPECT_TRUE(same_bits(here.logits(), there.logits()));
}

TEST(Device, SessionsMoveBetweenDevices) {
  NEEDS_GPU();
  for (const DType cache : {DType::kF16, DType::kQ8_0}) {
    SCOPED_TRACE(dtype_name(cache));
    move_session(cache);
  }
}

// Keys and values of 8 bits: f32 activations, so that a key's code differs from the CPU's only where it is nearly
// halfway between two.
TEST(Device, EightBitCachesAreTheCpus) {
  NEEDS_GPU();
  for (const TinySpec& spec : specs()) {
    SCOPED_TRACE(spec.architecture + " of " + std::to_string(spec.value_heads) + " value heads");
    const TempFolder folder;
    const std::string path = folder / "model.gguf";
    TinyModel(spec).write_gguf(path);
    ModelOptions host = precise();
    ModelOptions device = on_gpu(1, true);
    host.kv_dtype = device.kv_dtype = DType::kQ8_0;
    Model cpu = Model::load(path, host);
    Model gpu = Model::load(path, device);
    Sequence expected = cpu.start();
    Sequence given = gpu.start();
    const std::vector<std::int32_t> tokens = some_tokens(150, spec.vocabulary);
    EXPECT_LT(difference(logits_of_each(gpu, given, tokens), logits_of_each(cpu, expected, tokens)), kPackedBound);
    for (const std::int32_t token : some_tokens(40, spec.vocabulary, 3)) {
      cpu.step(expected, token);
      gpu.step(given, token);
    }
    EXPECT_LT(difference(copy(given.logits()), copy(expected.logits())), kPackedBound);
  }
}

TEST(Device, InterruptedPrefillsLeaveNoTrace) {
  NEEDS_GPU();
  const Loaded file;
  ModelOptions options = on_gpu();
  options.prefill_chunk = 32;
  Model model = Model::load(file.path, options);
  Sequence sequence = model.start();
  model.prefill(sequence, some_tokens(40, file.spec.vocabulary));
  const std::vector<float> before = copy(sequence.logits());
  int calls = 0;
  EXPECT_FALSE(model.prefill(sequence, some_tokens(200, file.spec.vocabulary), [&] { return ++calls < 3; }));
  EXPECT_EQ(sequence.tokens().size(), 40U);
  EXPECT_TRUE(same_bits(sequence.logits(), before));
  Sequence fresh;
  model.step(sequence, 5);
  const std::vector<float> after = copy(sequence.logits());
  sequence.clear();
  model.prefill(sequence, some_tokens(40, file.spec.vocabulary));
  model.step(sequence, 5);
  EXPECT_TRUE(same_bits(sequence.logits(), after));
}

TEST(Device, ModelsThatDoNotFitAreRefusedOrStayOnTheCpu) {
  NEEDS_GPU();
  const Loaded file;
  ModelOptions options = on_gpu(1000);
  options.context = 1 << 28;
  expect_error([&] { Model::load(file.path, options); }, {"device", "weights", "free"});
  Model model = Model::load(file.path, on_gpu());
  Sequence sequence = model.start();
  model.step(sequence, 1);
  options = on_gpu();
  options.device = Device{DeviceType::kCuda, 99};
  expect_error([&] { Model::load(file.path, options); }, {});
}

}  // namespace
}  // namespace thalweg::model
