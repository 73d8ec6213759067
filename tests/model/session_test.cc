// Session files restore the saved state bit for bit, and every other file is refused.

#include "model/support.h"

namespace thalweg::model {
namespace {

struct Saved {
  TempFolder folder;
  TinySpec spec;
  std::vector<std::int32_t> tokens;
  std::string model_path = folder / "model.gguf";
  std::string path = folder / "text.session";

  explicit Saved(std::size_t count, const ModelOptions& options = precise()) {
    spec.interval = 2;
    spec.experts = 0;
    spec.architecture = "qwen35";
    spec.key_dim = 16;
    spec.value_dim = 16;
    TinyModel(spec).write_gguf(model_path);
    tokens = random_tokens(count, spec.vocabulary, 12);
    Model model = Model::load(model_path, options);
    Sequence sequence = model.start();
    model.prefill(sequence, tokens);
    sequence.save(path);
  }
};

void expect_same_continuation(Model& model, Sequence& a, Sequence& b, int vocabulary) {
  EXPECT_TRUE(std::equal(a.tokens().begin(), a.tokens().end(), b.tokens().begin(), b.tokens().end()));
  EXPECT_TRUE(same_bits(a.logits(), b.logits()));
  const std::vector<std::int32_t> more = random_tokens(70, vocabulary, 13);
  for (Sequence* sequence : {&a, &b}) {
    model.prefill(*sequence, more);
    for (int i = 0; i < 5; ++i) model.step(*sequence, model.sample(*sequence, {}));
  }
  EXPECT_TRUE(same_bits(a.logits(), b.logits()));
  EXPECT_TRUE(std::equal(a.tokens().begin(), a.tokens().end(), b.tokens().begin(), b.tokens().end()));
}

TEST(Session, ContinuesToTheBit) {
  for (DType cache : {DType::kF16, DType::kF32, DType::kQ8_0}) {
    for (std::size_t count : {0U, 1U, 100U, 600U}) {
      ModelOptions options = precise(3);
      options.kv_dtype = cache;
      const Saved saved(count, options);
      // Another load, another slot, a cache of another capacity.
      Model model = Model::load(saved.model_path, options);
      Sequence first = model.start();
      Sequence uninterrupted = model.start();
      model.prefill(uninterrupted, saved.tokens);
      Sequence restored = model.start();
      model.prefill(restored, random_tokens(30, saved.spec.vocabulary, 99));  // must not affect the restored state
      restored.restore(saved.path);
      expect_same_continuation(model, uninterrupted, restored, saved.spec.vocabulary);
    }
  }
}

TEST(Session, SavedAgainIsTheSameFile) {
  const Saved saved(50);
  Model model = Model::load(saved.model_path, precise());
  Sequence sequence = model.start();
  sequence.restore(saved.path);
  sequence.save(saved.folder / "again.session");
  EXPECT_EQ(read_file(saved.folder / "again.session"), read_file(saved.path));
}

// restore() refuses `path`, and the sequence continues unchanged.
void expect_refused(Model& model, const std::string& path, std::initializer_list<std::string_view> parts) {
  Sequence sequence = model.start();
  const std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5};
  model.prefill(sequence, tokens);
  const std::vector<float> before = copy(sequence.logits());
  expect_error([&] { sequence.restore(path); }, parts);
  EXPECT_TRUE(same_bits(sequence.logits(), before));
  model.step(sequence, 9);
  const std::vector<float> after = copy(sequence.logits());
  sequence.clear();
  model.prefill(sequence, tokens);
  model.step(sequence, 9);
  EXPECT_TRUE(same_bits(sequence.logits(), after));
}

TEST(Session, CutAnywhereIsRefused) {
  const Saved saved(20);
  Model model = Model::load(saved.model_path, precise());
  const std::string whole = read_file(saved.path);
  const std::string path = saved.folder / "cut.session";
  for (std::size_t length = 0; length < whole.size(); length += length < 300 ? 1 : 997) {
    write_file(path, std::string_view(whole).substr(0, length));
    Sequence sequence = model.start();
    expect_error([&] { sequence.restore(path); }, {"cut.session"});
  }
  write_file(path, whole.substr(0, whole.size() - 1));
  expect_refused(model, path, {"cut.session", "checksum"});
  write_file(path, whole + '\0');
  expect_refused(model, path, {"cut.session", "checksum"});
  expect_refused(model, saved.folder / "none.session", {"none.session"});
}

TEST(Session, WithAnyByteChangedIsRefused) {
  const Saved saved(20);
  Model model = Model::load(saved.model_path, precise());
  const std::string whole = read_file(saved.path);
  const std::string path = saved.folder / "flipped.session";
  for (std::size_t place = 0; place < whole.size(); place += place < 200 ? 1 : 499) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 1 << place % 8);
    write_file(path, damaged);
    Sequence sequence = model.start();
    expect_error([&] { sequence.restore(path); }, {"flipped.session"});
    EXPECT_TRUE(sequence.tokens().empty());
  }
  std::string damaged = whole;
  std::swap(damaged[whole.size() / 2], damaged[whole.size() / 2 + 8]);
  write_file(path, damaged);
  expect_refused(model, path, {"damaged"});
}

TEST(Session, OfAnotherModelIsRefused) {
  const Saved saved(20);
  TinySpec spec = saved.spec;
  spec.seed = 2;  // the same shapes, other weights
  TinyModel(spec).write_gguf(saved.folder / "other.gguf");
  Model other = Model::load(saved.folder / "other.gguf", precise());
  expect_refused(other, saved.path, {"another model"});
  spec = saved.spec;
  spec.layers = 6;
  TinyModel(spec).write_gguf(saved.folder / "deeper.gguf");
  Model deeper = Model::load(saved.folder / "deeper.gguf", precise());
  expect_refused(deeper, saved.path, {"another model"});
}

TEST(Session, ThatDoesNotFitTheOptionsIsRefused) {
  const Saved saved(200);
  ModelOptions options = precise();
  options.context = 128;
  Model small = Model::load(saved.model_path, options);
  expect_refused(small, saved.path, {"128", "200"});
  options = precise();
  options.kv_dtype = DType::kF16;
  Model half = Model::load(saved.model_path, options);
  expect_refused(half, saved.path, {"F16"});
}

TEST(Session, ReplacesAFileWhole) {
  const Saved saved(20);
  Model model = Model::load(saved.model_path, precise());
  Sequence sequence = model.start();
  model.prefill(sequence, saved.tokens);
  model.step(sequence, 7);
  sequence.save(saved.path);
  Sequence().operator=(std::move(sequence));
  Sequence restored = model.start();
  restored.restore(saved.path);
  EXPECT_EQ(restored.tokens().size(), 21U);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(saved.folder / "")) ++files;
  EXPECT_EQ(files, 2U) << "a temporary file was left";
  expect_error([&] { restored.save(saved.folder / "nowhere/text.session"); }, {"nowhere"});
}

}  // namespace
}  // namespace thalweg::model
