#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace thalweg::app {

// The largest value of options that are counts.
inline constexpr std::int64_t kMostCount = 1'000'000'000;

// Checks of numbers. Each takes the whole argument or none of it, and says what it expected.
CLI::Validator whole_number(std::int64_t least, std::int64_t most);
CLI::Validator number(double least, double most);  // never inf or nan
// A seed of 64 bits; `word`, if not empty, is accepted too.
CLI::Validator seed_number(const std::string& word = "");

// Options that commands share.
void add_threads(CLI::App& command, int& threads);
// --numa interleave, see memory_nodes.h.
void add_numa(CLI::App& command, bool& interleave);
// -q: no progress and no timings on stderr, see quiet() in terminal.h.
void add_quiet(CLI::App& command);

}  // namespace thalweg::app
