// Tiny random models against what Hugging Face transformers computed with them in float32
// (tools/make_model_goldens.py).

#include "model/golden_file.h"
#include "model/support.h"

namespace thalweg::model {
namespace {

constexpr double kLogitBound = 2e-4;   // relative to the range of the logits
constexpr double kClearMargin = 1e-3;  // the best logit's lead, relative to the range, below which either may win

std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  const std::filesystem::path folder = std::filesystem::path(THALWEG_TEST_DIR) / "model" / "goldens";
  if (!std::filesystem::is_directory(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / "config.json")) names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void compare(Model& model, const GoldenFile& goldens) {
  EXPECT_GE(goldens.prompts().size(), 8U);
  for (const std::string& prompt : goldens.prompts()) {
    SCOPED_TRACE(prompt);
    Sequence sequence = model.start();
    model.prefill(sequence, goldens.ids(prompt + ".ids"));
    EXPECT_LT(difference(copy(sequence.logits()), copy(goldens.numbers(prompt + ".logits"))), kLogitBound);
    compare_greedy(model, sequence, goldens, prompt, kClearMargin);
  }
}

// Rows that transformers padded on the left are sequences of their own here.
void compare_batch(Model& model, const GoldenFile& goldens) {
  const ConstTensor ids = goldens.file().tensor("batch.ids");
  const ConstTensor mask = goldens.file().tensor("batch.mask");
  const ConstTensor logits = goldens.file().tensor("batch.logits");
  std::vector<Sequence> sequences;
  std::vector<std::vector<std::int32_t>> rows;
  for (std::int64_t row = 0; row < ids.dim(0); ++row) {
    sequences.push_back(model.start());
    rows.emplace_back();
    for (std::int64_t i = 0; i < ids.dim(1); ++i) {
      if (static_cast<const std::int32_t*>(mask.row(row))[i] != 0) {
        rows.back().push_back(static_cast<const std::int32_t*>(ids.row(row))[i]);
      }
    }
  }
  std::vector<SequenceInput> batch;
  for (std::size_t row = 0; row < rows.size(); ++row) batch.push_back({&sequences[row], rows[row]});
  model.prefill(batch);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto* expected = static_cast<const float*>(logits.row(static_cast<std::int64_t>(row)));
    const std::vector<float> values(expected, expected + logits.dim(1));
    EXPECT_LT(difference(copy(sequences[row].logits()), values), kLogitBound) << "row " << row;
  }
}

TEST(Goldens, OfTransformers) {
  const std::vector<std::string> models = golden_models();
  EXPECT_GE(models.size(), 8U);
  for (const std::string& folder : models) {
    SCOPED_TRACE(std::filesystem::path(folder).filename().string());
    const GoldenFile goldens(folder + "/goldens.safetensors");
    Model model = Model::load(folder, precise(3));
    compare(model, goldens);
    compare_batch(model, goldens);
  }
}

}  // namespace
}  // namespace thalweg::model
