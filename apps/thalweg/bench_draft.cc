// bench --op draft: how many drafts are right, and what they gain.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "commands.h"
#include "model_options.h"
#include "output_file.h"
#include "streams.h"

namespace thalweg::app {
namespace {

struct Mode {
  const char* name;
  DraftMode draft;
};
constexpr Mode kModes[] = {
    {"off", DraftMode::kOff}, {"lookup", DraftMode::kLookup}, {"mtp", DraftMode::kMtp}, {"auto", DraftMode::kAuto}};

struct Prompt {
  const char* name;
  std::vector<std::int32_t> tokens;
  float temperature = 0;
};

constexpr std::int64_t kTokens = 256;
constexpr int kRepeats = 5;

std::string times(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::vector<Prompt> prompts_of(const Model& model) {
  if (!model.info().has_tokenizer) {
    Prompt repeated{"repeated", {}, 0};
    for (std::int64_t i = 0; i < 200; ++i) {
      repeated.tokens.push_back(static_cast<std::int32_t>((i % 17 * 7919 + 13) % model.info().vocabulary));
    }
    return {repeated};
  }
  const auto story = model.tokenize("Anna put the ball in the box. Ben went to the kitchen. Where is the ball?");
  const auto records = times("{\"name\": \"ball\", \"place\": \"kitchen\", \"owner\": \"Mary\"},\n", 12);
  return {{"story", story},
          {"drawn", story, 1.0F},
          {"repeated", model.tokenize(times("John went to the kitchen. Mary took the ball there. ", 12))},
          {"records", model.tokenize(records)}};
}

struct Measured {
  double seconds = 0;
  DraftCounts counts;
};

Measured measure(Model& model, const Prompt& prompt) {
  Sequence sequence = model.start();
  model.prefill(sequence, prompt.tokens);
  Sampling sampling;
  sampling.temperature = prompt.temperature;
  Sequence* const sequences[] = {&sequence};
  const DraftCounts before = model.draft_counts();
  const auto begin = std::chrono::steady_clock::now();
  model.decode(sequences, std::span(&sampling, 1), kTokens, {}, {}, true);
  Measured measured;
  measured.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const DraftCounts after = model.draft_counts();
  measured.counts = {after.runs - before.runs, after.drafts - before.drafts, after.accepted - before.accepted};
  return measured;
}

// Modes that are measured together, and the texts' speed without drafts.
class Texts {
 public:
  Texts(const BenchOptions& options, std::string path) : options_(options), path_(std::move(path)) {}

  // On a CPU the modes take turns, so that all of them meet the same machine; a GPU has room for one model.
  nlohmann::json run() {
    print("  {:<10} {:<8} {:>10} {:>10} {:>12} {:>10}\n", "text", "drafts", "tokens/s", "over off", "tokens/run",
          "right");
    if (options_.device == "cpu") {
      measure({std::begin(kModes), std::end(kModes)});
    } else {
      for (const Mode& mode : kModes) measure({mode});
    }
    return rows_;
  }

 private:
  void measure(const std::vector<Mode>& modes) {
    std::vector<Model> models;
    std::vector<const char*> names;
    for (const Mode& mode : modes) {
      if (mode.draft == DraftMode::kMtp && !has_mtp_) continue;
      names.push_back(mode.name);
      LoadOptions load;
      load.path = path_;
      load.threads = options_.threads;
      load.device = options_.device;
      load.context = 2048;
      load.draft = mode.draft;
      models.push_back(load_model(load));
      has_mtp_ = models.back().info().mtp_layers == 1;
    }
    if (models.empty()) return;
    const std::vector<Prompt> prompts = prompts_of(models.front());
    off_.resize(prompts.size());
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      std::vector<std::vector<double>> seconds(models.size());
      std::vector<Measured> last(models.size());
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        for (std::size_t i = 0; i < models.size(); ++i) {
          last[i] = app::measure(models[i], prompts[p]);
          seconds[i].push_back(last[i].seconds);
        }
      }
      for (std::size_t i = 0; i < models.size(); ++i) {
        std::nth_element(seconds[i].begin(), seconds[i].begin() + kRepeats / 2, seconds[i].end());
        add(prompts[p].name, names[i], seconds[i][kRepeats / 2], last[i].counts, off_[p]);
      }
    }
  }

  void add(const char* text, const char* mode, double seconds, const DraftCounts& counts, double& off) {
    const double rate = static_cast<double>(kTokens) / seconds;
    if (off == 0) off = rate;  // the first mode
    const double per_run = counts.runs > 0 ? static_cast<double>(kTokens) / static_cast<double>(counts.runs) : 1.0;
    const double right =
        counts.drafts > 0 ? static_cast<double>(counts.accepted) / static_cast<double>(counts.drafts) : 0.0;
    print("  {:<10} {:<8} {:>10.1f} {:>10.2f} {:>12.2f} {:>9.0f}%\n", text, mode, rate, rate / off, per_run,
          100 * right);
    flush_output();
    rows_.push_back({{"text", text},
                     {"drafts", mode},
                     {"tokens_per_second", rate},
                     {"over_off", rate / off},
                     {"tokens_per_run", per_run},
                     {"acceptance", right}});
  }

  const BenchOptions& options_;
  std::string path_;
  bool has_mtp_ = false;
  std::vector<double> off_;  // tokens/s by text
  nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace

int bench_draft(const BenchOptions& options) {
  if (options.models.empty()) throw std::runtime_error("name the models to run with -m");
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& path : options.models) {
    const std::string name = std::filesystem::path(path).filename().string();
    print("{}: {} tokens; of the text 'drawn' at temperature 1, else the likeliest\n", name, kTokens);
    nlohmann::json texts = Texts(options, path).run();
    results.push_back({{"model", name}, {"results", std::move(texts)}, {"rounds", bench_rounds(options, path)}});
  }
  if (!options.json.empty()) write_text(options.json, results.dump(1) + "\n");
  return 0;
}

}  // namespace thalweg::app
