// Tiny random models against what Hugging Face transformers computed with them in float32
// (tools/make_model_goldens.py).

#include <set>

#include "io/safetensors.h"
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
    if (entry.is_directory()) names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct Goldens {
  io::SafetensorsFile file;

  explicit Goldens(const std::string& folder) : file(folder + "/goldens.safetensors") {}

  std::span<const std::int32_t> ids(const std::string& name) const { return values<std::int32_t>(name); }
  std::span<const float> numbers(const std::string& name) const { return values<float>(name); }

 private:
  template <class T>
  std::span<const T> values(const std::string& name) const {
    const ConstTensor tensor = file.tensor(name);
    return {static_cast<const T*>(tensor.data), static_cast<std::size_t>(tensor.size())};
  }
};

double range(std::span<const float> logits) {
  const auto [least, most] = std::minmax_element(logits.begin(), logits.end());
  return static_cast<double>(*most) - static_cast<double>(*least);
}

// The lengths n of prompt.<n>.ids.
std::set<int> prompt_lengths(const Goldens& goldens) {
  std::set<int> lengths;
  for (const std::string& name : goldens.file.names()) {
    if (name.starts_with("prompt.") && name.ends_with(".ids")) lengths.insert(std::stoi(name.substr(7)));
  }
  return lengths;
}

void compare(Model& model, const Goldens& goldens) {
  const std::set<int> lengths = prompt_lengths(goldens);
  EXPECT_GE(lengths.size(), 8U);
  for (int length : lengths) {
    SCOPED_TRACE("prompt of " + std::to_string(length));
    const std::string prompt = "prompt." + std::to_string(length);
    Sequence sequence = model.start();
    model.prefill(sequence, goldens.ids(prompt + ".ids"));
    const std::vector<float> expected = copy(goldens.numbers(prompt + ".logits"));
    EXPECT_LT(difference(copy(sequence.logits()), expected), kLogitBound);
    const std::span<const std::int32_t> greedy = goldens.ids(prompt + ".greedy");
    const std::span<const float> margins = goldens.numbers(prompt + ".margin");
    EXPECT_EQ(greedy.size(), 20U);
    for (std::size_t i = 0; i < greedy.size(); ++i) {
      if (static_cast<double>(margins[i]) < kClearMargin * range(sequence.logits())) break;
      EXPECT_EQ(model.sample(sequence, {}), greedy[i]) << "step " << i;
      model.step(sequence, greedy[i]);
    }
  }
}

// Rows that transformers padded on the left are sequences of their own here.
void compare_batch(Model& model, const Goldens& goldens) {
  const ConstTensor ids = goldens.file.tensor("batch.ids");
  const ConstTensor mask = goldens.file.tensor("batch.mask");
  const ConstTensor logits = goldens.file.tensor("batch.logits");
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
    const Goldens goldens(folder);
    Model model = Model::load(folder, precise(3));
    compare(model, goldens);
    compare_batch(model, goldens);
  }
}

}  // namespace
}  // namespace thalweg::model
