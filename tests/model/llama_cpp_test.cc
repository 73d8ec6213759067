// Files that Thalweg writes against what llama.cpp computed with them, and files that llama.cpp's converter wrote
// (tools/make_llama_cpp_goldens.py).

#include <map>

#include "convert/convert.h"
#include "cpu/tile_ops.h"
#include "model/golden_file.h"
#include "model/support.h"

namespace thalweg::model {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(THALWEG_TEST_DIR) / "model" / "goldens";
const fs::path kStory = fs::path(THALWEG_TEST_DIR).parent_path() / "models" / "story-q4_k.gguf";

constexpr double kClearMargin = 1e-2;
constexpr double kFloatBound = 1e-5;
// Both round activations to 8 bits, each in its own way. Matrix units multiply bf16 instead, so that the whole error of
// llama.cpp's rounding remains: up to 1e-2, while it is up to 1.3e-3 against f32 activations, and 7.5e-3 with 8 bits.
const double kQuantizedBound = cpu::amx_tile_ops() == nullptr ? 5e-3 : 1.5e-2;

double normalised_error(std::span<const float> given, std::span<const float> expected) {
  EXPECT_EQ(given.size(), expected.size());
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < given.size() && i < expected.size(); ++i) {
    const double difference = static_cast<double>(given[i]) - static_cast<double>(expected[i]);
    error += difference * difference;
    power += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return error / power;
}

// Steps of greedy decoding that were compared.
int compare(Model& model, const GoldenFile& goldens, double bound) {
  int steps = 0;
  EXPECT_GE(goldens.prompts().size(), 4U);
  for (const std::string& prompt : goldens.prompts()) {
    SCOPED_TRACE(prompt);
    Sequence sequence = model.start();
    model.prefill(sequence, goldens.ids(prompt + ".ids"));
    const double error = normalised_error(sequence.logits(), goldens.numbers(prompt + ".logits"));
    EXPECT_LE(error, bound);
    steps += compare_greedy(model, sequence, goldens, prompt, kClearMargin);
  }
  return steps;
}

// <model>.<type>.safetensors, by model and type.
std::map<std::pair<std::string, std::string>, std::string> tiny_goldens() {
  std::map<std::pair<std::string, std::string>, std::string> found;
  for (const auto& entry : fs::directory_iterator(kGoldens / "llama_cpp")) {
    const fs::path stem = entry.path().stem();
    if (entry.path().extension() != ".safetensors" || stem.extension().empty()) continue;
    found[{stem.stem().string(), stem.extension().string().substr(1)}] = entry.path().string();
  }
  return found;
}

TEST(LlamaCpp, ComputesTheSameFromTheFilesThatWeWrite) {
  const auto files = tiny_goldens();
  EXPECT_GE(files.size(), 14U);
  int steps = 0;
  for (const auto& [file, path] : files) {
    const auto& [name, type] = file;
    SCOPED_TRACE(path);
    const TempFolder folder;
    convert::convert_model((kGoldens / name).string(), folder / "model.gguf", convert::type_mix(type), {});
    ModelOptions options = precise();
    options.exact = type == "F32";
    Model model = Model::load(folder / "model.gguf", options);
    steps += compare(model, GoldenFile(path), options.exact ? kFloatBound : kQuantizedBound);
  }
  EXPECT_GE(steps, 400);
}

TEST(LlamaCpp, ComputesTheSameFromTheShippedFile) {
  SCOPED_TRACE("goldens of this file? tools/make_llama_cpp_goldens.py --only story");
  const GoldenFile goldens((kGoldens / "llama_cpp" / "story-q4_k.safetensors").string());
  for (const bool exact : {false, true}) {
    SCOPED_TRACE(exact ? "exact" : "rounded");
    ModelOptions options = precise();
    options.exact = exact;
    Model model = Model::load(kStory.string(), options);
    EXPECT_GE(compare(model, goldens, kQuantizedBound), 30);
    // Both tokenizers give the same tokens.
    for (const std::string& prompt : goldens.prompts()) {
      const std::vector<std::int32_t> ids(goldens.ids(prompt + ".ids").begin(), goldens.ids(prompt + ".ids").end());
      EXPECT_EQ(model.tokenize(model.detokenize(ids), false), ids);
    }
  }
}

// Their converter reorders the value heads of Qwen3.5. The goldens are those of transformers.
TEST(LlamaCpp, ConvertsToFilesThatWeRead) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(kGoldens / "llama_cpp")) {
    if (entry.path().extension() != ".gguf") continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++files;
    Model model = Model::load(entry.path().string(), precise());
    const GoldenFile goldens((kGoldens / entry.path().stem() / "goldens.safetensors").string());
    for (const std::string& prompt : goldens.prompts()) {
      SCOPED_TRACE(prompt);
      Sequence sequence = model.start();
      model.prefill(sequence, goldens.ids(prompt + ".ids"));
      EXPECT_LT(difference(copy(sequence.logits()), copy(goldens.numbers(prompt + ".logits"))), 2e-4);
    }
  }
  EXPECT_GE(files, 2);
}

}  // namespace
}  // namespace thalweg::model
