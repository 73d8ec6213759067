// bench --op grammar: schemas compiled, masks over a large vocabulary, and what a constraint adds to decoding.

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cases/grammars.h"
#include "commands.h"
#include "grammar/masks.h"
#include "model_options.h"
#include "output_file.h"
#include "progress.h"
#include "streams.h"
#include "thalweg/engine.h"
#include "thalweg/grammar.h"

namespace thalweg::app {
namespace {

constexpr std::size_t kVocabulary = 250'000;
constexpr int kTokens = 600;  // of a walk
constexpr double kCompileBar = 50;
constexpr double kDecodeBar = 0.05;

// Of the processor: what else runs on the machine does not count.
double milliseconds_since(std::clock_t begin) {
  return static_cast<double>(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Masks over synthetic tokens.
class MaskBench {
 public:
  // In milliseconds.
  struct Times {
    double mean = 0;
    double worst = 0;
  };

  MaskBench() : texts_(cases::synthetic_vocabulary(kVocabulary, 3)) {
    end_ = static_cast<std::int32_t>(texts_.size()) - 2;
    const std::clock_t begin = std::clock();
    vocabulary_ = std::make_shared<const grammar::Vocabulary>(
        std::vector<std::string_view>(texts_.begin(), texts_.end()), std::vector{end_}, std::vector{end_ + 1});
    trie_ms_ = milliseconds_since(begin);
  }

  double trie_ms() const { return trie_ms_; }
  std::shared_ptr<grammar::MaskCache> cache_of(const Grammar& grammar) const {
    return std::make_shared<grammar::MaskCache>(grammar.shared(), vocabulary_);
  }

  // As models write: mostly long tokens in strings, which end after some.
  Times walk(const std::shared_ptr<grammar::MaskCache>& cache) {
    Times times;
    for (int count = 0; count < kTokens;) {
      grammar::Follower follower(cache);
      for (int in_string = 0; count < kTokens; ++count) {
        const std::clock_t begin = std::clock();
        const std::span<const std::uint32_t> mask = follower.allowed();
        const double milliseconds = milliseconds_since(begin);
        times.mean += milliseconds;
        times.worst = std::max(times.worst, milliseconds);
        in_string = is_allowed(mask, '#') ? in_string + 1 : 0;
        const std::int32_t token = choose(mask, in_string > 8);
        if (token == end_) break;
        const std::clock_t accepting = std::clock();
        follower.accept(token);
        times.mean += milliseconds_since(accepting);
      }
    }
    times.mean /= kTokens;
    return times;
  }

 private:
  static bool is_allowed(std::span<const std::uint32_t> mask, std::int32_t token) {
    return (mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1U) != 0;
  }

  std::int32_t choose(std::span<const std::uint32_t> mask, bool close_string) {
    if (close_string && is_allowed(mask, '"')) return '"';
    if (is_allowed(mask, end_) && random_() % 4 == 0) return end_;
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < static_cast<std::int32_t>(texts_.size()); ++token) {
      if (is_allowed(mask, token)) allowed.push_back(token);
    }
    return allowed[random_() % allowed.size()];
  }

  std::vector<std::string> texts_;
  std::int32_t end_ = 0;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  double trie_ms_ = 0;
  std::mt19937 random_{4};
};

nlohmann::json bench_masks() {
  MaskBench bench;
  print("Schemas, and masks over {} synthetic tokens, whose trie takes {:.0f} ms; milliseconds of the processor\n",
        kVocabulary, bench.trie_ms());
  print("  {:<18} {:>8} {:>12} {:>8} {:>12} {:>8}\n", "schema", "compile", "first: mean", "worst", "again: mean",
        "worst");
  nlohmann::json rows = nlohmann::json::array();
  double slowest = 0;
  for (const cases::UsualSchema& usual : cases::usual_schemas()) {
    std::vector<double> compile;
    for (int i = 0; i < 5; ++i) {
      const std::clock_t begin = std::clock();
      Grammar::json_schema(usual.schema);
      compile.push_back(milliseconds_since(begin));
    }
    const auto cache = bench.cache_of(Grammar::json_schema(usual.schema));
    const MaskBench::Times first = bench.walk(cache);
    const MaskBench::Times again = bench.walk(cache);
    const double typical = median(compile);
    slowest = std::max(slowest, typical);
    print("  {:<18} {:>8.2f} {:>12.4f} {:>8.2f} {:>12.4f} {:>8.2f}\n", usual.name, typical, first.mean, first.worst,
          again.mean, again.worst);
    flush_output();
    rows.push_back({{"schema", usual.name},
                    {"compile_ms", typical},
                    {"first_mean_ms", first.mean},
                    {"first_worst_ms", first.worst},
                    {"again_mean_ms", again.mean},
                    {"again_worst_ms", again.worst}});
  }
  print("  the slowest to compile: {:.2f} ms; at most {:.0f} ms is wanted\n", slowest, kCompileBar);
  return rows;
}

// Decoding with a constraint and without, in turns, at the same positions of the same prompt.
class DecodeBench {
 public:
  DecodeBench(const BenchOptions& options, const std::string& path) : engine_(model_of(options, path)) {
    prompt_ =
        engine_.model().tokenize("Anna put the red ball in the kitchen. Tom took the lamp to the attic. As JSON: ");
  }

  nlohmann::json run() {
    print("  {:<18} {:>7} {:>12} {:>12} {:>8}\n", "schema", "tokens", "ms a token", "without", "more");
    nlohmann::json rows = nlohmann::json::array();
    Times all;
    const std::vector<cases::UsualSchema> schemas = cases::usual_schemas();
    Progress progress(schemas.size());
    for (const cases::UsualSchema& usual : schemas) {
      progress.step(usual.name);
      const Times times = measure(Grammar::json_schema(usual.schema));
      progress.clear();
      add(rows, usual.name, times);
      all.steps += times.steps;
      all.constrained += times.constrained * static_cast<double>(times.steps);
      all.free += times.free * static_cast<double>(times.steps);
    }
    if (all.steps == 0) return rows;
    all.constrained /= static_cast<double>(all.steps);
    all.free /= static_cast<double>(all.steps);
    add(rows, "all", all);
    print("  at most {:.0f} % more is wanted\n", 100 * kDecodeBar);
    return rows;
  }

 private:
  static constexpr int kRepeats = 9;
  static constexpr std::int64_t kMost = 160;

  struct Times {
    std::int64_t steps = 0;
    double constrained = 0;  // milliseconds of a token
    double free = 0;
  };

  static Model model_of(const BenchOptions& options, const std::string& path) {
    LoadOptions load;
    load.path = path;
    load.threads = options.threads;
    load.device = options.device;
    load.context = 1024;
    return load_model(load);
  }

  struct Answer {
    std::int64_t steps = 0;  // from the first token on
    double seconds = 0;
  };
  Answer answer(std::unique_ptr<TokenConstraint> constraint, std::int64_t tokens) {
    Request request;
    request.prompt = prompt_;
    request.max_tokens = tokens;
    request.ignore_end = constraint == nullptr;
    request.constraint = std::move(constraint);
    Answer made;
    TokenStream stream = engine_.stream(std::move(request));
    for (Output output; stream.next(output);) {
      if (output.finish == FinishReason::kError) throw std::runtime_error(output.error);
      // The end token is chosen by a step of its own.
      if (output.finish) {
        made.steps = output.usage.generated_tokens - (output.finish == FinishReason::kEndToken ? 0 : 1);
        made.seconds = output.usage.generation_seconds;
      }
    }
    return made;
  }

  // Of many pairs the middle one.
  Times measure(const Grammar& grammar) {
    std::vector<double> constrained;
    std::vector<double> free;
    Times times;
    for (int i = 0; i <= kRepeats; ++i) {
      const Answer one = answer(engine_.constraint(grammar), kMost);
      if (one.steps <= 0) return times;
      const Answer other = answer(nullptr, one.steps + 1);
      times.steps = one.steps;
      if (i == 0) continue;  // its masks are made
      constrained.push_back(1e3 * one.seconds / static_cast<double>(one.steps));
      free.push_back(1e3 * other.seconds / static_cast<double>(other.steps));
    }
    times.constrained = median(constrained);
    times.free = median(free);
    return times;
  }

  static void add(nlohmann::json& rows, const std::string& name, const Times& times) {
    if (times.steps == 0) return;
    const double more = times.constrained / times.free - 1;
    print("  {:<18} {:>7} {:>12.4f} {:>12.4f} {:>7.1f}%\n", name, times.steps, times.constrained, times.free,
          100 * more);
    flush_output();
    rows.push_back({{"schema", name},
                    {"tokens", times.steps},
                    {"ms_per_token", times.constrained},
                    {"ms_per_token_without", times.free},
                    {"more", more}});
  }

  Engine engine_;
  std::vector<std::int32_t> prompt_;
};

std::string csv_of(const nlohmann::json& masks, const nlohmann::json& models) {
  std::string csv = "model,schema,measure,value\n";
  const auto add = [&](const std::string& model, const nlohmann::json& rows) {
    for (const auto& row : rows) {
      for (const auto& [measure, value] : row.items()) {
        if (measure == "schema") continue;
        csv += fmt::format("{},{},{},{:.5g}\n", model, row["schema"].get<std::string>(), measure, value.get<double>());
      }
    }
  };
  add("", masks);
  for (const auto& model : models) add(model["model"].get<std::string>(), model["results"]);
  return csv;
}

}  // namespace

int bench_grammar(const BenchOptions& options) {
  const nlohmann::json masks = bench_masks();
  nlohmann::json models = nlohmann::json::array();
  for (const std::string& path : options.models) {
    const std::string name = std::filesystem::path(path).filename().string();
    print("{}: decoding with a constraint and without, in turns\n", name);
    models.push_back({{"model", name}, {"results", DecodeBench(options, path).run()}});
  }
  if (!options.json.empty())
    write_text(options.json, nlohmann::json{{"masks", masks}, {"models", models}}.dump(1) + "\n");
  if (!options.csv.empty()) write_text(options.csv, csv_of(masks, models));
  return 0;
}

}  // namespace thalweg::app
