#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "thalweg/model.h"

namespace thalweg::app {

// The largest value of options that are counts.
inline constexpr std::int64_t kMostCount = 1'000'000'000;

// The options of every command that runs a model.
struct LoadOptions {
  std::string path;
  int threads = 0;
  std::int64_t context = 0;
  bool exact = false;
};

void add_load_options(CLI::App& command, LoadOptions& options);

// With a progress bar.
Model load_model(const LoadOptions& options, int sequences = 1);

// Throws for a model without a tokenizer, for commands that read or write text.
void require_tokenizer(const Model& model);

void add_sampling_options(CLI::App& command, Sampling& sampling);

// "12.3 GB", "4.56 MB".
std::string format_bytes(std::uint64_t bytes);

// "prefill 34 tokens, 512.3 tokens/s; decode 16 tokens, 40.1 tokens/s".
std::string describe_speed(const Generated& generated);

// A whole file, or stdin for "-".
std::string read_text(const std::string& path);

}  // namespace thalweg::app
