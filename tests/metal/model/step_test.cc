// A whole model on the executor: its text, and what a decode step launches and moves.

#include <gtest/gtest.h>

#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "engine/outputs.h"
#include "io/gguf.h"
#include "metal/host/executor.h"
#include "metal/story_model.h"
#include "model/support.h"

namespace thalweg::metal {
namespace {

constexpr Device kMetal{DeviceType::kMetal, 0};
constexpr std::string_view kPrompt = "Tom has the lamp. Who has the lamp?";

struct StepCounts {
  Counts total;
  std::uint64_t command_buffers = 0;
};

StepCounts counts_of_decoding(Model& model, Sequence& sequence, std::int64_t tokens) {
  Sequence* sequences[] = {&sequence};
  const Sampling sampling[] = {{}};
  reset_executor_counts();
  model.decode(sequences, sampling, tokens, {}, {}, true);
  return {executor_total(), executor_command_buffers()};
}

// What a step has to read: every weight but the experts that are not chosen, and one row of the embedding is no more.
double floor_bytes(const ModelInfo& info) {
  const io::GgufFile file(THALWEG_MODEL);
  double bytes = 0.0;
  for (const auto& tensor : file.tensors()) {
    const bool experts = tensor.name.find("_exps") != std::string::npos;
    const double all = static_cast<double>(tensor.bytes);
    bytes += experts ? all * info.experts_used / info.experts : all;
  }
  return bytes;
}

TEST(MetalModel, GreedyTextIsTheCpus) {
  Model cpu = load_story(kCpu);
  Model metal = load_story(kMetal);
  EXPECT_NE(metal.info().device.find("executed on the host"), std::string::npos);
  const std::vector<std::int32_t> expected = answer_of(cpu, std::string(kPrompt), 8);
  EXPECT_GE(expected.size(), 3U);
  EXPECT_EQ(answer_of(metal, std::string(kPrompt), 8), expected);
}

TEST(MetalModel, AStepIsOneCommandBuffer) {
  Model model = load_story(kMetal, false);
  Sequence sequence = model.start();
  model.prefill(sequence, model.tokenize("Tom"));
  counts_of_decoding(model, sequence, 3);  // records both graphs
  const StepCounts few = counts_of_decoding(model, sequence, 2);
  const StepCounts more = counts_of_decoding(model, sequence, 4);
  EXPECT_EQ(more.command_buffers - few.command_buffers, 2U);
  const std::uint64_t launches = (more.total.launches - few.total.launches) / 2;
  const std::uint64_t dependencies = (more.total.dependencies - few.total.dependencies) / 2;
  const double read = static_cast<double>(more.total.device_bytes_read - few.total.device_bytes_read) / 2.0;
  const double written = static_cast<double>(more.total.device_bytes_written - few.total.device_bytes_written) / 2.0;
  const double floor = floor_bytes(model.info());
  std::printf(
      "A decode step: 1 command buffer, 1 encoder, %llu launches, %llu barriers between launches, %llu "
      "threadgroups, %llu barriers in them, %.2f MB read, %.3f MB written; floor %.2f MB\n",
      static_cast<unsigned long long>(launches), static_cast<unsigned long long>(dependencies),
      static_cast<unsigned long long>((more.total.threadgroups - few.total.threadgroups) / 2),
      static_cast<unsigned long long>((more.total.barriers - few.total.barriers) / 2), read * 1e-6, written * 1e-6,
      floor * 1e-6);
  // As whole_step.cc counts them: 15 launches of each of six gated delta layers, 18 of two with attention; embedding,
  // last norm, head, a choice in two launches, the next token's place, and a copy of it. 256 positions are not split.
  EXPECT_EQ(launches, 6U * 15 + 2 * (18 - 1) + 7);
  EXPECT_LE(dependencies, launches);
  EXPECT_GE(read, floor);
}

// Other architectures: interleaved projections, dense blocks, value heads on fewer key heads; two sequences that decode
// together.
TEST(MetalModel, LogitsOfTinyModelsAreTheCpus) {
  attach_executor();
  model::TinySpec next;
  next.architecture = "qwen3next";
  next.value_heads = 2;
  model::TinySpec dense;
  dense.architecture = "qwen35";
  dense.experts = 0;
  dense.value_heads = 8;
  for (const model::TinySpec& spec : {next, dense}) {
    SCOPED_TRACE(spec.architecture);
    const model::TempFolder folder;
    const std::string path = folder / "model.gguf";
    model::TinyModel(spec).write_gguf(path);
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < 21; ++i) prompt.push_back(i * 37 % spec.vocabulary);
    std::vector<std::vector<float>> logits;
    for (const Device device : {kCpu, kMetal}) {
      ModelOptions options = model::precise(2);
      options.device = device;
      options.context = 64;
      Model loaded = Model::load(path, options);
      Sequence first = loaded.start();
      Sequence second = loaded.start();
      loaded.prefill(first, prompt);
      loaded.prefill(second, std::span(prompt).first(5));
      Sequence* const both[] = {&first, &second};
      const std::int32_t tokens[] = {3, 7};
      for (int i = 0; i < 3; ++i) loaded.step(both, tokens);
      for (const Sequence* sequence : both) logits.emplace_back(sequence->logits().begin(), sequence->logits().end());
    }
    for (const std::size_t n : {0U, 1U}) EXPECT_LT(model::difference(logits[n + 2], logits[n]), 2e-4);
  }
}

// States and caches, which only copies reach, go to a file and back, and to another device.
TEST(MetalModel, SessionsKeepTheState) {
  attach_executor();
  const model::TinySpec spec;
  const model::TempFolder folder;
  const std::string path = folder / "model.gguf";
  const std::string session = folder / "session";
  model::TinyModel(spec).write_gguf(path);
  std::vector<std::int32_t> prompt;
  for (int i = 0; i < 9; ++i) prompt.push_back(i * 37 % spec.vocabulary);
  std::vector<float> after;
  for (const Device device : {kMetal, kCpu}) {
    ModelOptions options = model::precise(2);
    options.device = device;
    options.context = 64;
    Model loaded = Model::load(path, options);
    if (device == kMetal) {
      Sequence sequence = loaded.start();
      loaded.prefill(sequence, prompt);
      sequence.save(session);
      loaded.step(sequence, 3);
      after = model::copy(sequence.logits());
    }
    Sequence restored = loaded.start();
    loaded.prefill(restored, std::span(prompt).first(2));
    restored.restore(session);
    EXPECT_EQ(restored.tokens().size(), prompt.size());
    loaded.step(restored, 3);
    if (device == kMetal) {
      EXPECT_TRUE(model::same_bits(restored.logits(), after));
    }
    EXPECT_LT(model::difference(model::copy(restored.logits()), after), 2e-4);
  }
}

// The prefix cache takes states and caches from private memory and puts them back.
TEST(MetalModel, ThePrefixCacheKeepsTheText) {
  attach_executor();
  const model::TinySpec spec;
  const model::TempFolder folder;
  const std::string path = folder / "model.gguf";
  model::TinyModel(spec).write_gguf(path);
  ModelOptions options = model::precise(2);
  options.device = kMetal;
  options.context = 256;
  Engine engine(Model::load(path, options));
  const auto answer = [&] {
    Request request;
    for (int i = 0; i < 150; ++i) request.prompt.push_back(i * 37 % spec.vocabulary);
    request.boundaries = {128};
    request.max_tokens = 3;
    return read_all(engine.stream(std::move(request)));
  };
  const Output cold = answer();
  const Output warm = answer();
  EXPECT_EQ(cold.usage.cached_tokens, 0);
  EXPECT_GT(warm.usage.cached_tokens, 0);
  expect_same(warm, cold, 0);
}

// A run with drafts: tokens that are replayed, taken back and kept. The text is the one without drafts.
TEST(MetalModel, DraftsKeepTheText) {
  attach_executor();
  ModelOptions options;
  options.device = kMetal;
  options.exact = true;
  options.context = 256;
  options.draft = DraftMode::kLookup;
  options.draft_max = 4;
  Model drafted = Model::load(THALWEG_MODEL, options);
  const std::string prompt = "Tom has the lamp. Mia has the key. Tom has the lamp. Who has the lamp?";
  Model plain = load_story(kMetal);
  EXPECT_EQ(answer_of(drafted, prompt, 12), answer_of(plain, prompt, 12));
  EXPECT_GT(drafted.draft_counts().accepted, 0);
}

// Whatever the text, the state after drafts that were right and wrong is the one that a prefill of the text reaches.
TEST(MetalModel, DraftsLeaveTheStateOfTheText) {
  attach_executor();
  std::int64_t wrong = 0;
  for (const DraftMode draft : {DraftMode::kLookup, DraftMode::kMtp}) {
    SCOPED_TRACE(draft == DraftMode::kMtp ? "mtp" : "lookup");
    model::TinySpec spec;
    spec.vocabulary = 5;
    model::TinyModel tiny(spec);
    if (draft == DraftMode::kMtp) tiny.make_predictable();
    const model::TempFolder folder;
    const std::string path = folder / "model.gguf";
    tiny.write_gguf(path);
    ModelOptions options = model::precise(2);
    options.device = kMetal;
    options.context = 128;
    options.draft = draft;
    options.draft_max = 6;
    Model loaded = Model::load(path, options);
    Sequence sequence = loaded.start();
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < 40; ++i) prompt.push_back(i % 20 * 37 % spec.vocabulary);
    Sampling sampling;
    sampling.temperature = 0.2F;
    sampling.seed = 3;
    loaded.prefill(sequence, prompt);
    Sequence* const sequences[] = {&sequence};
    loaded.decode(sequences, std::span(&sampling, 1), 40, {}, {}, true);
    EXPECT_GT(loaded.draft_counts().accepted, 0);
    wrong += loaded.draft_counts().drafts - loaded.draft_counts().accepted;
    EXPECT_EQ(sequence.tokens().size(), prompt.size() + 40);
    Sequence fresh = loaded.start();
    loaded.prefill(fresh, std::vector<std::int32_t>(sequence.tokens().begin(), sequence.tokens().end()));
    const std::vector<float> reached(sequence.logits().begin(), sequence.logits().end());
    EXPECT_LT(model::difference(reached, std::vector<float>(fresh.logits().begin(), fresh.logits().end())), 2e-4);
    // What is left to replay is, before single steps of several sequences.
    Sequence* const both[] = {&sequence, &fresh};
    const std::int32_t tokens[] = {3, 3};
    loaded.step(both, tokens);
    const std::vector<float> stepped(sequence.logits().begin(), sequence.logits().end());
    EXPECT_LT(model::difference(stepped, std::vector<float>(fresh.logits().begin(), fresh.logits().end())), 2e-4);
  }
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace thalweg::metal
