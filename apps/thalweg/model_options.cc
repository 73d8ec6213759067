#include "model_options.h"

#include <fmt/core.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>

#include "progress.h"

namespace thalweg::app {

void add_load_options(CLI::App& command, LoadOptions& options) {
  command.add_option("-m,--model", options.path, "A .gguf file, or a Hugging Face directory")->required();
  command.add_option("--threads", options.threads, "Threads, 0 for all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option("--context", options.context,
                  "Most tokens of a text, 0 for what the model was made for, at most 32768")
      ->check(CLI::Range(std::int64_t{0}, kMostCount))
      ->capture_default_str();
  command.add_flag("--exact", options.exact, "Do not round activations to 8 bits for packed weights: slower");
}

Model load_model(const LoadOptions& options, int sequences) {
  WorkBar bar("loading " + options.path);
  ModelOptions model_options;
  model_options.threads = options.threads;
  model_options.context = options.context;
  model_options.sequences = sequences;
  model_options.exact = options.exact;
  model_options.progress = bar.listener();
  return Model::load(options.path, model_options);
}

void require_tokenizer(const Model& model) {
  if (model.info().has_tokenizer) return;
  throw std::runtime_error(model.info().path +
                           " has no tokenizer, so it cannot read or write text: give token ids with `thalweg generate "
                           "--token-ids 1,2,3`");
}

void add_sampling_options(CLI::App& command, Sampling& sampling) {
  command.add_option("--temp", sampling.temperature, "Temperature; 0 takes the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Draw from this many tokens, 0 for all")
      ->check(CLI::Range(std::int64_t{0}, kMostCount))
      ->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Draw from the likeliest tokens that have this probability together")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Drop tokens below this fraction of the likeliest token's probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--repeat-penalty", sampling.repeat_penalty, "Make tokens of the last 64 less likely; 1 for off")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  command.add_option("--seed", sampling.seed, "The same seed gives the same text")->capture_default_str();
}

std::string format_bytes(std::uint64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (size >= 1e9) return fmt::format("{:.2f} GB", size * 1e-9);
  if (size >= 1e6) return fmt::format("{:.2f} MB", size * 1e-6);
  if (size >= 1e3) return fmt::format("{:.1f} kB", size * 1e-3);
  return fmt::format("{} bytes", bytes);
}

std::string describe_speed(const Generated& generated) {
  const auto phase = [](const char* name, std::int64_t tokens, double seconds) {
    const double rate = seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
    return fmt::format("{} {} tokens, {:.1f} tokens/s", name, tokens, rate);
  };
  return phase("prefill", generated.prompt_tokens, generated.prefill_seconds) + "; " +
         phase("decode", generated.steps, generated.decode_seconds);
}

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error("cannot read " + path + ": give a text file");
  return text;
}

}  // namespace thalweg::app
