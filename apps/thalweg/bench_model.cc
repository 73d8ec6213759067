// Decoding against the memory's speed: bench --op model.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "commands.h"
#include "machine.h"
#include "model/synthesize.h"
#include "model_options.h"
#include "progress.h"

namespace thalweg::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A folder for the models of a run.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = fs::temp_directory_path() / fmt::format("thalweg-bench-{:08x}", std::random_device()());
    if (!fs::create_directory(path_)) throw std::runtime_error("cannot create " + path_.string());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

std::string synthesize_into(const TemporaryFolder& folder, const std::string& type, double gigabytes) {
  const std::string path = folder.file(type + ".gguf");
  WorkBar bar("writing " + path);
  model::SynthOptions synth;
  synth.gigabytes = gigabytes;
  synth.progress = bar.listener();
  model::synthesize(path, model::type_mix(type), synth);
  return path;
}

struct Round {
  double read = 0.0;    // bytes per second
  double decode = 0.0;  // bytes of weights per second
  double ratio() const { return decode / read; }
};

template <class Value>
double best_of(const std::vector<Round>& rounds, Value value) {
  double best = 0.0;
  for (const Round& round : rounds) best = std::max(best, value(round));
  return best;
}

double median_ratio(std::vector<Round> rounds) {
  std::sort(rounds.begin(), rounds.end(), [](const Round& a, const Round& b) { return a.ratio() < b.ratio(); });
  return rounds[rounds.size() / 2].ratio();
}

nlohmann::json measure(const std::string& path, MemoryReader& reader, const BenchOptions& options) {
  constexpr int kSteps = 4;  // of a round: it is over before the machine's other work has changed much
  LoadOptions load;
  load.path = path;
  load.threads = options.threads;
  Model model = load_model(load);
  const ModelInfo& info = model.info();
  const Stream stream = Stream::cpu(options.threads);
  Sequence sequence = model.start();
  std::int32_t token = 0;
  const auto step = [&] {
    model.step(sequence, token);
    token = (token + 1) % static_cast<std::int32_t>(info.vocabulary);
  };
  step();  // warms the caches
  std::vector<Round> rounds;
  const Clock::time_point begin = Clock::now();
  constexpr std::size_t kFewest = 8;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  while (rounds.size() < kFewest || seconds_since(begin) < options.model_seconds) {
    if (static_cast<std::int64_t>(sequence.tokens().size()) + kSteps > model.context()) sequence.clear();
    Round round;
    round.read = reader.pass(stream);
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kSteps; ++i) step();
    round.decode = static_cast<double>(info.decode_bytes) * kSteps / seconds_since(start);
    rounds.push_back(round);
  }
  const double read = best_of(rounds, [](const Round& round) { return round.read; });
  const double decode = best_of(rounds, [](const Round& round) { return round.decode; });
  const double tokens = decode / static_cast<double>(info.decode_bytes);
  const std::string name = fs::path(path).filename().string();
  fmt::print("{:<24} {:>10} {:>10} {:>10.1f} {:>8.1f} {:>8.1f} {:>8.2f} {:>8.2f}\n", name,
             format_bytes(info.decode_bytes), format_bytes(2 * info.state_bytes), tokens, decode * 1e-9, read * 1e-9,
             decode / read, median_ratio(rounds));
  flush_output();
  return {{"op", "model"},
          {"file", name},
          {"threads", model.threads()},
          {"bytes_per_token", info.decode_bytes},
          {"tokens_per_second", tokens},
          {"decode_bytes_per_second", decode},
          {"read_bytes_per_second", read},
          {"ratio", decode / read},
          {"median_ratio", median_ratio(rounds)},
          {"rounds", rounds.size()}};
}

}  // namespace

int bench_model(const BenchOptions& options) {
  const TemporaryFolder folder;
  std::vector<std::string> paths = options.models;
  if (paths.empty()) {
    for (const char* type : {"Q4_K", "Q8_0"}) paths.push_back(synthesize_into(folder, type, options.gigabytes));
  }
  MemoryReader reader(std::int64_t{2} << 30);
  fmt::print(
      "Decoding, one sequence: rounds of one read of 2 GiB and a few tokens. Best round of each, and the median of\n"
      "the ratios within a round, which other work on the machine moves less.\n\n");
  fmt::print("{:<24} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8}\n", "model", "weights", "state", "tokens/s", "GB/s",
             "read", "ratio", "median");
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& path : paths) rows.push_back(measure(path, reader, options));
  if (!options.json.empty()) write_text(options.json, rows.dump(1) + "\n");
  return 0;
}

}  // namespace thalweg::app
