// Drafts by the MTP layer: its logits beside those of the mathematics, whatever ran before; texts that do not change;
// what sessions, other files and broken files make of it.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "convert/convert.h"
#include "decode/decoder.h"
#include "decode/drafter.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "io/safetensors.h"
#include "model/support.h"

namespace thalweg::model {
namespace {

using Tokens = std::vector<std::int32_t>;

// f32 against f64: the trunk's bound (decoder_test.cc), and one layer more.
constexpr double kBound = 3e-5;
constexpr int kDrafts = 5;

TinyModel make(const std::string& architecture, bool predictable = false) {
  TinySpec spec;
  spec.architecture = architecture;
  if (architecture == "qwen35") spec.experts = 0;
  spec.layers = 4;
  spec.interval = 2;
  TinyModel tiny(spec);
  if (predictable) tiny.make_predictable();
  return tiny;
}

// The decoder and its pool, without a Model around them.
class Bench {
 public:
  Bench(const TinyModel& tiny, const std::string& path, bool gguf, std::int64_t chunk) : tiny_(tiny) {
    if (gguf) {
      auto file = std::make_unique<io::GgufFile>(path);
      config_ = checkpoint::read_config(file->metadata(), *file, path);
      source_ = std::move(file);
    } else {
      source_ = std::make_unique<io::SafetensorsFile>(path);
      config_ = checkpoint::read_config(io::JsonObject::read(path + "/config.json"), *source_);
    }
    weights_ = checkpoint::bind_weights(config_, *source_);
    runtime_ = std::make_unique<decode::Runtime>(kCpu, 2, ThreadPool{}, true);
    pool_ = std::make_unique<decode::StatePool>(config_, *runtime_, 3, 4096, DType::kF32, DType::kF32, kDrafts, true);
    pool_->allocate();
    decoder_ = std::make_unique<decode::Decoder>(config_, weights_, *runtime_, chunk, 3, kDrafts, true);
  }

  int start() {
    texts_.emplace_back();
    return pool_->acquire();
  }
  const Tokens& text(int slot) const { return texts_[static_cast<std::size_t>(slot)]; }

  void run(const std::vector<int>& slots, const std::vector<Tokens>& tokens) {
    decoder_->run(inputs(slots, tokens), *pool_, decode::LogitsOf::kLast, ignore(), {});
    for (std::size_t i = 0; i < slots.size(); ++i) append(slots[i], tokens[i]);
  }
  // A round of which the last `wrong` drafts of each sequence are taken back.
  void run_drafts(const std::vector<int>& slots, const std::vector<Tokens>& tokens, std::int64_t wrong) {
    decoder_->run_drafts(inputs(slots, tokens), *pool_, ignore());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      pool_->drop(slots[i], wrong);
      append(slots[i], {tokens[i].begin(), tokens[i].end() - wrong});
    }
  }
  std::vector<Tokens> draft(const std::vector<int>& slots, const Tokens& next, const std::vector<std::int64_t>& most) {
    std::vector<decode::MtpLayer::Request> requests;
    for (std::size_t i = 0; i < slots.size(); ++i) requests.push_back({slots[i], next[i], most[i]});
    std::vector<Tokens> drafts(slots.size());
    decoder_->draft(requests, *pool_, drafts);
    return drafts;
  }
  // Drafts of each of some slots, `most` of each; the logits of the last ones are compared with the mathematics.
  void expect_drafts(const std::vector<int>& slots, std::int32_t next, std::int64_t most) {
    const std::vector<Tokens> drafts =
        draft(slots, Tokens(slots.size(), next), std::vector<std::int64_t>(slots.size(), most));
    const ConstTensor logits = decoder_->mtp()->last_logits();
    ASSERT_EQ(logits.dim(0), static_cast<std::int64_t>(slots.size()));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      ASSERT_EQ(drafts[i].size(), static_cast<std::size_t>(most));
      Tokens tokens = text(slots[i]);
      tokens.push_back(next);
      const Tokens before(drafts[i].begin(), drafts[i].end() - 1);
      const std::vector<double> expected = tiny_.draft_logits(tokens, before).back();
      const auto* row = static_cast<const float*>(logits.row(static_cast<std::int64_t>(i)));
      const std::vector<float> given(row, row + logits.dim(1));
      EXPECT_LT(difference(given, expected), kBound) << "slot " << slots[i] << " after " << tokens.size();
      const auto likeliest = std::max_element(given.begin(), given.end()) - given.begin();
      EXPECT_EQ(drafts[i].back(), likeliest);
    }
  }
  decode::StatePool& pool() { return *pool_; }
  void settle(int slot) {
    const decode::DecoderInput input{slot, {}};
    decoder_->settle(std::span(&input, 1), *pool_);
  }
  void copy_text(int from, int to) { texts_[static_cast<std::size_t>(to)] = text(from); }

 private:
  static decode::LogitsCallback ignore() {
    return [](std::size_t, std::int64_t, std::span<const float>) {};
  }
  static std::vector<decode::DecoderInput> inputs(const std::vector<int>& slots, const std::vector<Tokens>& tokens) {
    std::vector<decode::DecoderInput> all;
    for (std::size_t i = 0; i < slots.size(); ++i) all.push_back({slots[i], tokens[i]});
    return all;
  }
  void append(int slot, const Tokens& tokens) {
    Tokens& text = texts_[static_cast<std::size_t>(slot)];
    text.insert(text.end(), tokens.begin(), tokens.end());
  }

  const TinyModel& tiny_;
  checkpoint::ModelConfig config_;
  std::unique_ptr<io::TensorSource> source_;
  checkpoint::Weights weights_;
  std::unique_ptr<decode::Runtime> runtime_;
  std::unique_ptr<decode::StatePool> pool_;
  std::unique_ptr<decode::Decoder> decoder_;
  std::vector<Tokens> texts_;
};

// Chunks of a prefill, single steps and rounds with drafts, of one sequence and of several of different lengths.
void expect_mathematics(Bench& bench) {
  const int a = bench.start();
  const int b = bench.start();
  bench.run({a}, {random_tokens(1, 101, 1)});
  bench.expect_drafts({a}, 7, 1);
  bench.expect_drafts({a}, 8, 3);
  bench.run({a}, {random_tokens(21, 101, 2)});  // 16 and 5
  bench.expect_drafts({a}, 3, 2);
  bench.run({a, b}, {random_tokens(9, 101, 3), random_tokens(17, 101, 4)});
  bench.expect_drafts({a, b}, 5, kDrafts);
  for (std::int32_t step = 0; step < 11; ++step) bench.run({b}, {{step}});  // more than are kept
  bench.run({a, b}, {{4}, {6}});
  bench.expect_drafts({a, b}, 9, 1);
  // As drafts are made for a token that runs next, and for one that does not.
  for (const std::int64_t wrong : {0, 1, 3}) {
    bench.draft({a}, {17}, {2});
    bench.run_drafts({a, b}, {{static_cast<std::int32_t>(17 + wrong), 1, 2, 3}, {21, 22, 23, 24}}, wrong);
    bench.expect_drafts({a, b}, 30, 2);
    bench.run_drafts({b, a}, {{30, 1, 2, 3}, {30, 22, 23, 24}}, wrong);
    bench.expect_drafts({b, a}, 31, 1);
  }
  // A prefill right after drafts of its first token.
  bench.expect_drafts({a}, 40, 1);
  bench.run({a}, {{40, 41, 42, 43, 44, 45, 46, 47, 48, 49}});
  bench.expect_drafts({a}, 50, 2);
}

TEST(Mtp, LogitsOfDraftsAreThoseOfTheMathematics) {
  const OnAllThreads everywhere;
  for (const char* architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    SCOPED_TRACE(architecture);
    const TempFolder folder;
    const TinyModel tiny = make(architecture);
    tiny.write_hugging_face(folder / "hf");
    tiny.write_gguf(folder / "model.gguf");
    Bench from_folder(tiny, folder / "hf", false, 16);
    expect_mathematics(from_folder);
    Bench from_gguf(tiny, folder / "model.gguf", true, 16);
    from_gguf.start();
    from_gguf.run({0}, {random_tokens(33, 101, 2)});
    from_gguf.expect_drafts({0}, 3, 2);
  }
}

// The memory for keys and values grows after 512 tokens: here as drafts are made.
TEST(Mtp, RowsStayAsMemoryGrows) {
  const TempFolder folder;
  const TinyModel tiny = make("qwen35");
  tiny.write_gguf(folder / "model.gguf");
  Bench bench(tiny, folder / "model.gguf", true, 128);
  bench.start();
  bench.run({0}, {random_tokens(509, 101, 5)});
  bench.draft({0}, {2}, {kDrafts});
  bench.run_drafts({0}, {{2, 3, 4, 5, 6, 7}}, 1);
  bench.expect_drafts({0}, 2, 1);
}

// What is read of one slot and written to another makes the same drafts there, from whole blocks of tokens too, whose
// rows must not depend on the token that comes after them.
TEST(Mtp, RowsGoWithTheStatesOfATokenAndThoseBefore) {
  const TempFolder folder;
  const TinyModel tiny = make("qwen35moe");
  tiny.write_gguf(folder / "model.gguf");
  Bench bench(tiny, folder / "model.gguf", true, 16);
  decode::StatePool& pool = bench.pool();
  const int from = bench.start();
  const int to = bench.start();
  bench.run({from}, {random_tokens(32, 101, 8)});
  std::vector<std::byte> states(pool.fixed_bytes());
  bench.settle(from);
  pool.read_states(from, states.data());
  bench.copy_text(from, to);
  bench.run({from}, {random_tokens(3, 101, 9)});  // another text than the second slot's
  bench.settle(from);
  std::vector<std::byte> rows(pool.token_bytes() * 16);
  for (const std::int64_t first : {0, 16}) {
    pool.read_cache(from, first, 16, rows.data());
    pool.write_cache(to, first, 16, rows.data());
  }
  pool.write_states(to, states.data());
  pool.set_length(to, 32);
  bench.expect_drafts({to}, 77, 3);
  bench.run({to}, {{77, 1, 2}});
  bench.expect_drafts({from, to}, 5, 2);
}

struct Text {
  Tokens tokens;
  Logits logits;
  DraftCounts counts;
};

Text decode(Model& model, Sequence& sequence, const Sampling& sampling, std::int64_t most, std::size_t stop = 10000) {
  Text text;
  const DraftCounts before = model.draft_counts();
  Sequence* const sequences[] = {&sequence};
  model.decode(
      sequences, std::span(&sampling, 1), most,
      [&](std::span<const std::int32_t> tokens) {
        text.tokens.push_back(tokens.front());
        return text.tokens.size() < stop;
      },
      [&](std::size_t, std::int32_t, std::span<const float> logits) { text.logits.push_back(copy(logits)); }, true);
  const DraftCounts after = model.draft_counts();
  text.counts = {after.runs - before.runs, after.drafts - before.drafts, after.accepted - before.accepted};
  return text;
}

ModelOptions with(DraftMode draft, ModelOptions options = precise()) {
  options.draft = draft;
  return options;
}

Text decode(const std::string& path, const ModelOptions& options, const Sampling& sampling, std::int64_t tokens) {
  Model model = Model::load(path, options);
  Sequence sequence = model.start();
  model.prefill(sequence, random_tokens(40, static_cast<int>(model.info().vocabulary), 6));
  return decode(model, sequence, sampling, tokens);
}

// With what is drawn at temperature, texts do not fall into a cycle, and drafts are right and wrong.
Sampling warm() {
  Sampling sampling;
  sampling.temperature = 0.15F;
  sampling.seed = 4;
  return sampling;
}

void expect_same(const Text& drafted, const Text& plain) {
  EXPECT_EQ(drafted.tokens, plain.tokens);
  ASSERT_EQ(drafted.logits.size(), plain.logits.size());
  for (std::size_t i = 0; i < plain.logits.size(); ++i) {
    ASSERT_TRUE(same_bits(drafted.logits[i], plain.logits[i])) << "token " << i;
  }
  EXPECT_EQ(drafted.counts.runs + drafted.counts.accepted, static_cast<std::int64_t>(drafted.tokens.size()));
}

TEST(Mtp, TextStaysTheSame) {
  const OnAllThreads everywhere;
  for (const char* architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    for (const DType dtype : {DType::kF32, DType::kQ8_0}) {
      SCOPED_TRACE(std::string(architecture) + " " + std::string(dtype_name(dtype)));
      const TempFolder folder;
      make(architecture, true).write_gguf(folder / "model.gguf", dtype);
      ModelOptions options = precise();
      options.exact = dtype == DType::kF32;
      for (const Sampling& sampling : {Sampling{}, warm()}) {
        const Text plain = decode(folder / "model.gguf", options, sampling, 250);
        for (const DraftMode mode : {DraftMode::kMtp, DraftMode::kAuto}) {
          const Text drafted = decode(folder / "model.gguf", with(mode, options), sampling, 250);
          expect_same(drafted, plain);
          if (mode == DraftMode::kAuto) continue;
          EXPECT_GT(drafted.counts.accepted, 25);
          EXPECT_TRUE(sampling.temperature == 0 || drafted.counts.drafts > drafted.counts.accepted + 10);
        }
      }
    }
  }
}

// Random weights foresee nothing: nearly all drafts are wrong, and nothing else changes.
TEST(Mtp, WrongDraftsLeaveTheTextAsItIs) {
  const TempFolder folder;
  make("qwen35moe").write_hugging_face(folder / "hf");
  const Text plain = decode(folder / "hf", precise(), warm(), 200);
  const Text drafted = decode(folder / "hf", with(DraftMode::kMtp), warm(), 200);
  expect_same(drafted, plain);
  EXPECT_GT(drafted.counts.drafts, 100);
  EXPECT_LT(drafted.counts.accepted, 50);
}

// A layer whose logits are no numbers makes no drafts.
TEST(Mtp, ALayerThatOverflowsDraftsNothing) {
  const TempFolder folder;
  TinyModel tiny = make("qwen35");
  for (float& value : tiny.tensors().at("mtp.fc.weight").values) value = 3e38F;
  for (float& value : tiny.tensors().at("mtp.norm.weight").values) value = 3e38F;
  tiny.write_hugging_face(folder / "hf");
  const Text drafted = decode(folder / "hf", with(DraftMode::kMtp), {}, 30);
  expect_same(drafted, decode(folder / "hf", precise(), {}, 30));
  EXPECT_EQ(drafted.counts.drafts, 0);
}

// Wherever a text stops, a session keeps what further drafts need: they are those of the text that goes on.
TEST(Mtp, SessionsGoOnWithTheSameDrafts) {
  const TempFolder folder;
  make("qwen35moe", true).write_gguf(folder / "model.gguf");
  const std::string saved = folder / "session";
  Model model = Model::load(folder / "model.gguf", with(DraftMode::kMtp));
  Model plain = Model::load(folder / "model.gguf", precise());
  std::int64_t accepted = 0;
  for (std::size_t stop = 1; stop <= 12; ++stop) {
    SCOPED_TRACE(stop);
    Sequence sequence = model.start();
    Sequence other = plain.start();
    for (const auto& [one, of] : {std::pair{&sequence, &model}, std::pair{&other, &plain}}) {
      of->prefill(*one, random_tokens(30, 101, 6));
    }
    ASSERT_EQ(decode(model, sequence, warm(), 100, stop).tokens, decode(plain, other, warm(), 100, stop).tokens);
    ASSERT_TRUE(same_bits(sequence.logits(), other.logits()));
    sequence.save(saved);
    const Text on = decode(model, sequence, warm(), 30);
    accepted += on.counts.accepted;
    sequence.restore(saved);
    const Text again = decode(model, sequence, warm(), 30);
    expect_same(again, on);
    EXPECT_EQ(again.counts.drafts, on.counts.drafts);
    EXPECT_EQ(again.counts.accepted, on.counts.accepted);
    EXPECT_EQ(decode(plain, other, warm(), 30).tokens, on.tokens);
  }
  EXPECT_GT(accepted, 50);
}

// Sessions go between models with and without drafts; where one lacks the layer's rows, drafts come from the text.
TEST(Mtp, SessionsOfOtherModesAreRead) {
  const TempFolder folder;
  make("qwen35moe", true).write_gguf(folder / "model.gguf");
  Model model = Model::load(folder / "model.gguf", with(DraftMode::kMtp));
  Model plain = Model::load(folder / "model.gguf", precise());
  Sequence a = model.start();
  Sequence b = plain.start();
  const Tokens prompt = random_tokens(30, 101, 6);
  model.prefill(a, prompt);
  plain.prefill(b, prompt);
  a.save(folder / "with");
  b.save(folder / "without");
  EXPECT_GT(read_file(folder / "with").size(), read_file(folder / "without").size());
  b.restore(folder / "with");
  const Text text = decode(plain, b, warm(), 60);
  a.restore(folder / "without");
  const Text looked_up = decode(model, a, warm(), 60);
  EXPECT_EQ(looked_up.tokens, text.tokens);
  a.save(folder / "still_without");
  b.save(folder / "plain");
  EXPECT_EQ(read_file(folder / "still_without").size(), read_file(folder / "plain").size());
  a.clear();
  model.prefill(a, prompt);
  const Text drafted = decode(model, a, warm(), 60);
  EXPECT_EQ(drafted.tokens, text.tokens);
  EXPECT_GT(drafted.counts.accepted, looked_up.counts.accepted);
}

TEST(Mtp, APrefillThatIsStoppedChangesNothing) {
  const TempFolder folder;
  make("qwen35moe", true).write_gguf(folder / "model.gguf");
  ModelOptions options = with(DraftMode::kMtp);
  options.prefill_chunk = 16;
  Model model = Model::load(folder / "model.gguf", options);
  Sequence sequence = model.start();
  model.prefill(sequence, random_tokens(40, 101, 6));
  decode(model, sequence, warm(), 7);
  sequence.save(folder / "before");
  int runs = 0;
  EXPECT_FALSE(model.prefill(sequence, random_tokens(60, 101, 9), [&] { return ++runs < 3; }));
  const Text stopped = decode(model, sequence, warm(), 40);
  sequence.restore(folder / "before");
  const Text text = decode(model, sequence, warm(), 40);
  expect_same(stopped, text);
  EXPECT_EQ(stopped.counts.accepted, text.counts.accepted);
  EXPECT_EQ(stopped.counts.drafts, text.counts.drafts);
}

// Both kinds of file, and the one that is made of the other, make the same drafts.
TEST(Mtp, ConversionKeepsTheLayer) {
  for (const char* architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    SCOPED_TRACE(architecture);
    const TempFolder folder;
    const TinyModel tiny = make(architecture);
    tiny.write_hugging_face(folder / "hf");
    convert::convert_model(folder / "hf", folder / "new.gguf", convert::type_mix("F32"), {});
    convert::convert_model(folder / "new.gguf", folder / "packed.gguf", convert::type_mix("Q8_0"), {});
    const io::GgufFile packed(folder / "packed.gguf");
    EXPECT_EQ(packed.metadata().integer(std::string(architecture) + ".nextn_predict_layers"), 1);
    EXPECT_EQ(packed.tensor("blk.4.nextn.eh_proj.weight").dtype, DType::kQ8_0);
    EXPECT_EQ(packed.tensor("blk.4.nextn.hnorm.weight").dtype, DType::kF32);
    std::vector<std::vector<Tokens>> drafts;
    for (const char* file : {"hf", "new.gguf"}) {
      Bench one(tiny, folder / file, std::string_view(file) != "hf", 16);
      one.start();
      one.run({0}, {random_tokens(20, 101, 3)});
      drafts.push_back(one.draft({0}, {4}, {kDrafts}));
    }
    EXPECT_EQ(drafts[0], drafts[1]);
    Model model = Model::load(folder / "packed.gguf", with(DraftMode::kMtp));
    EXPECT_EQ(model.info().mtp_layers, 1);
  }
}

TEST(Mtp, WhatItTakesToMakeDraftsIsTheirCostToo) {
  decode::RoundCosts costs;
  costs.add_making(2, 0.2);
  EXPECT_EQ(costs.drafts(1, 1), 0.0) << "nothing is known of a round with drafts";
  costs.add(1, 0, 1.0);
  costs.add(1, 4, 1.4);
  EXPECT_NEAR(costs.drafts(1, 1), 0.1 + 0.1, 1e-12);
  costs.add_making(0, 5.0);
  EXPECT_NEAR(costs.drafts(1, 1), 0.2, 1e-12);
}

TEST(Mtp, IsDescribedAndCounted) {
  const TempFolder folder;
  make("qwen35moe").write_gguf(folder / "model.gguf");
  TinySpec spec;
  spec.interval = 2;
  spec.mtp = false;
  TinyModel(spec).write_gguf(folder / "without.gguf");
  const Model plain = Model::load(folder / "model.gguf", precise());
  const Model model = Model::load(folder / "model.gguf", with(DraftMode::kMtp));
  const Model without = Model::load(folder / "without.gguf", with(DraftMode::kAuto));
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : plain.info().tensors) bytes += tensor.mtp ? tensor.bytes : 0;
  EXPECT_GT(bytes, 0U);
  EXPECT_EQ(plain.info().mtp_bytes, bytes);
  EXPECT_EQ(plain.info().mtp_layers, 1);
  EXPECT_EQ(plain.info().weight_bytes, without.info().weight_bytes);
  EXPECT_EQ(plain.info().parameters, without.info().parameters);
  EXPECT_EQ(plain.info().mtp_token_bytes, 2U * 2 * 64 * sizeof(float));  // keys and values of two heads
  EXPECT_EQ(model.info().cache_token_bytes, plain.info().cache_token_bytes + plain.info().mtp_token_bytes);
  EXPECT_EQ(without.info().mtp_bytes, 0U);
  EXPECT_EQ(without.info().mtp_layers, 0);
}

TEST(Mtp, OptionsThatCannotBe) {
  const TempFolder folder;
  make("qwen35").write_gguf(folder / "model.gguf");
  ModelOptions options = with(DraftMode::kMtp);
  options.state_dtype = DType::kBF16;
  expect_error([&] { Model::load(folder / "model.gguf", options); }, {"draft", "F32", "mtp"});
  options.draft = DraftMode::kAuto;
  EXPECT_EQ(Model::load(folder / "model.gguf", options).draft_counts().drafts, 0);
}

// Names that published files have.
TEST(Mtp, IsFoundBehindOtherPrefixes) {
  const TempFolder folder;
  TinyModel tiny = make("qwen35");
  std::map<std::string, TinyTensor> moved;
  for (const auto& [name, tensor] : tiny.tensors()) {
    moved[(name.starts_with("mtp.") ? "model.language_model." : "") + name] = tensor;
  }
  tiny.write_hugging_face(folder / "mtp");
  const Text expected = decode(folder / "mtp", with(DraftMode::kMtp), warm(), 40);
  tiny.tensors() = moved;
  tiny.write_hugging_face(folder / "moved");
  const Text given = decode(folder / "moved", with(DraftMode::kMtp), warm(), 40);
  expect_same(given, expected);
  EXPECT_EQ(given.counts.accepted, expected.counts.accepted);
  EXPECT_EQ(given.counts.drafts, expected.counts.drafts);
}

TEST(Mtp, OwnEmbeddingAndHeadAreRead) {
  const TempFolder folder;
  TinyModel tiny = make("qwen35");
  const std::string embedding = "model.language_model.embed_tokens.weight";
  tiny.tensors()["mtp.embed_tokens.weight"] = tiny.tensors().at(embedding);
  tiny.tensors()["mtp.shared_head.head.weight"] = tiny.tensors().at("lm_head.weight");
  tiny.write_hugging_face(folder / "hf");
  const Text same = decode(folder / "hf", with(DraftMode::kMtp), {}, 40);
  // Heads that are upside down draft other tokens.
  for (float& value : tiny.tensors().at("mtp.shared_head.head.weight").values) value = -value;
  for (float& value : tiny.tensors().at("mtp.embed_tokens.weight").values) value = -value;
  tiny.write_hugging_face(folder / "other");
  convert::convert_model(folder / "other", folder / "other.gguf", convert::type_mix("F32"), {});
  Bench a(tiny, folder / "hf", false, 16);
  Bench b(tiny, folder / "other", false, 16);
  Bench c(tiny, folder / "other.gguf", true, 16);
  std::vector<std::vector<Tokens>> drafts;
  for (Bench* bench : {&a, &b, &c}) {
    bench->start();
    bench->run({0}, {random_tokens(20, 101, 3)});
    drafts.push_back(bench->draft({0}, {4}, {kDrafts}));
  }
  EXPECT_NE(drafts[0], drafts[1]);
  EXPECT_EQ(drafts[1], drafts[2]);
  EXPECT_EQ(decode(folder / "other", with(DraftMode::kMtp), {}, 40).tokens, same.tokens);
}

TEST(Mtp, MissingTensorsAreNamedAndAMissingLayerIsNone) {
  const TempFolder folder;
  for (const char* name : {"mtp.fc.weight", "mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight",
                           "mtp.layers.0.self_attn.k_norm.weight", "mtp.layers.0.mlp.up_proj.weight"}) {
    SCOPED_TRACE(name);
    TinyModel tiny = make("qwen35");
    tiny.tensors().erase(name);
    tiny.write_hugging_face(folder / "lacking");
    expect_error([&] { Model::load(folder / "lacking", precise()); }, {name, "none of that name"});
  }
  // The number stays, the layer is gone.
  TinyModel tiny = make("qwen35");
  std::erase_if(tiny.tensors(), [](const auto& entry) { return entry.first.starts_with("mtp."); });
  tiny.write_hugging_face(folder / "trunk");
  EXPECT_EQ(Model::load(folder / "trunk", with(DraftMode::kAuto)).info().mtp_layers, 0);
  expect_error([&] { Model::load(folder / "trunk", with(DraftMode::kMtp)); }, {"MTP layer", "none"});

  make("qwen35").write_gguf(folder / "model.gguf");
  const io::GgufFile whole(folder / "model.gguf");
  const auto write_without = [&](std::string_view part) {
    io::GgufWriter writer(folder / "part.gguf", whole.metadata());
    for (const io::GgufTensor& tensor : whole.tensors()) {
      if (tensor.name.starts_with(part)) continue;
      writer.declare(tensor.name, whole.tensor(tensor.name).dtype, tensor.shape);
    }
    for (const io::GgufTensor& tensor : whole.tensors()) {
      if (!tensor.name.starts_with(part)) writer.write(tensor.name, whole.tensor(tensor.name).data, tensor.bytes);
    }
    writer.finish();
  };
  write_without("blk.4.nextn.hnorm");
  expect_error([&] { Model::load(folder / "part.gguf", precise()); }, {"blk.4.nextn.hnorm.weight"});
  write_without("blk.4.nextn.shared_head_norm");  // the trunk's norm then
  EXPECT_EQ(Model::load(folder / "part.gguf", with(DraftMode::kMtp)).info().mtp_layers, 1);
  write_without("blk.4.");
  EXPECT_EQ(Model::load(folder / "part.gguf", with(DraftMode::kAuto)).info().mtp_layers, 0);
  expect_error([&] { Model::load(folder / "part.gguf", with(DraftMode::kMtp)); }, {"MTP layer", "none"});
}

}  // namespace
}  // namespace thalweg::model
