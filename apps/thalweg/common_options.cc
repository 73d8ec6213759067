#include "common_options.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "io/printable.h"
#include "terminal.h"

namespace thalweg::app {
namespace {

// The whole text in decimal, or nothing.
template <class Integer>
std::optional<Integer> read_integer(const std::string& text) {
  Integer value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return {};
  return value;
}

}  // namespace

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  const auto check = [=](std::string& text) -> std::string {
    const std::optional<std::int64_t> value = read_integer<std::int64_t>(text);
    if (!value || *value < least || *value > most) {
      return fmt::format("give a whole number from {} to {}, not '{}'", least, most, io::printable(text));
    }
    text = std::to_string(*value);  // what follows would read a leading 0 as octal
    return {};
  };
  return {check, most == kMostCount ? "" : fmt::format("{}..{}", least, most)};
}

CLI::Validator number(double least, double most) {
  const auto check = [=](std::string& text) -> std::string {
    char* stop = nullptr;
    const double value = std::strtod(text.c_str(), &stop);
    const bool whole = !text.empty() && stop == text.c_str() + text.size() && text.front() != ' ';
    if (!whole || !std::isfinite(value) || value < least || value > most) {
      return fmt::format("give a number from {} to {}, not '{}'", least, most, io::printable(text));
    }
    return {};
  };
  return {check, fmt::format("{}..{}", least, most)};
}

CLI::Validator seed_number(const std::string& word) {
  const auto check = [=](std::string& text) -> std::string {
    if (!word.empty() && text == word) return {};
    const std::optional<std::uint64_t> value = read_integer<std::uint64_t>(text);
    if (!value) {
      return fmt::format("give a whole number from 0 to {}{}, not '{}'", UINT64_MAX,
                         word.empty() ? "" : ", or '" + word + "'", io::printable(text));
    }
    text = std::to_string(*value);
    return {};
  };
  return {check, ""};
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("-t,--threads", threads, "Threads, 0 for all")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
}

void add_numa(CLI::App& command, bool& interleave) {
  command
      .add_option_function<std::string>(
          "--numa", [&interleave](const std::string& name) { interleave = name == "interleave"; },
          "Where processors have memory of their own: interleave takes pages from all of it in turn")
      ->check(CLI::IsMember({"off", "interleave"}))
      ->default_str("off");
}

void add_quiet(CLI::App& command) {
  command.add_flag_callback("-q,--quiet", be_quiet, "No progress and no timings on stderr");
}

}  // namespace thalweg::app
