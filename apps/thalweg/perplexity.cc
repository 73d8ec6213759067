#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "model_commands.h"
#include "model_options.h"
#include "progress.h"
#include "streams.h"
#include "terminal.h"

namespace thalweg::app {
namespace {

struct Options {
  LoadOptions load;
  std::string file;
  std::int64_t window = 0;
  bool json = false;
};

int perplexity(const Options& options) {
  const std::string text = read_text(options.file);
  Model model = load_model(options.load);
  require_tokenizer(model);
  const std::vector<std::int32_t> tokens = model.tokenize(text, false);
  if (tokens.size() < 2) throw std::runtime_error(options.file + ": give a text of at least two tokens");
  const std::int64_t window = options.window > 0 ? options.window : std::min<std::int64_t>(model.context(), 4096);
  if (window < 2 || window > model.context()) {
    throw std::runtime_error(fmt::format("--window must be from 2 to the context of {}", model.context()));
  }

  Sequence sequence = model.start();
  double sum = 0;
  double squares = 0;
  std::size_t count = 0;
  const auto start = std::chrono::steady_clock::now();
  WorkBar bar("scoring " + options.file);
  // Each window begins with an empty state, so that its first token has no probability.
  for (std::size_t at = 0; at + 1 < tokens.size(); at += static_cast<std::size_t>(window)) {
    const std::size_t size = std::min(static_cast<std::size_t>(window), tokens.size() - at);
    if (size < 2) break;
    sequence.clear();
    for (const double value : model.score(sequence, std::span(tokens).subspan(at, size))) {
      sum += value;
      squares += value * value;
      ++count;
    }
    bar.update(static_cast<double>(at + size) / static_cast<double>(tokens.size()));
  }
  bar.clear();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto scored = static_cast<double>(count);
  const double mean = sum / scored;
  const double deviation = std::sqrt(std::max(0.0, squares / scored - mean * mean) / scored);
  const double result = std::exp(-mean);
  if (options.json) {
    const nlohmann::json json = {
        {"perplexity", result},    {"standard_error", result * deviation},
        {"nats_per_token", -mean}, {"bits_per_byte", -sum / std::log(2.0) / static_cast<double>(text.size())},
        {"tokens", tokens.size()}, {"scored", count},
        {"window", window},        {"seconds", seconds}};
    print("{}\n", json.dump(1));
  } else {
    print("perplexity {:.4f} +- {:.4f} over {} tokens in windows of {}\n", result, result * deviation, count, window);
  }
  flush_output();
  if (!quiet()) {
    note("prefill {} tokens, {:.1f} tokens/s; {} threads\n", tokens.size(),
         static_cast<double>(tokens.size()) / seconds, model.threads());
  }
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("perplexity", "How well a model predicts a text");
  auto options = std::make_shared<Options>();
  add_load_options(*command, options->load);
  command->add_option("-f,--file", options->file, "The text, - for stdin")->required();
  command->add_option("--window", options->window, "Tokens that see one another; 0 for the context, at most 4096")
      ->check(whole_number(0, kMostCount))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print as JSON");
  command->callback([options, &exit_code] { exit_code = perplexity(*options); });
}

}  // namespace thalweg::app
