// Decoding against the memory's speed: bench --op model.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "commands.h"
#include "convert/synthesize.h"
#include "machine.h"
#include "model_options.h"
#include "output_file.h"
#include "progress.h"
#include "streams.h"

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
  std::string path = folder.file(type + ".gguf");
  WorkBar bar("writing " + path);
  convert::SynthOptions synth;
  synth.gigabytes = gigabytes;
  synth.progress = bar.listener();
  convert::synthesize(path, convert::type_mix(type), synth);
  return path;
}

// Bytes per second of wall time, and per second that the process had of the processors: on a machine with other work
// the two differ.
struct Rate {
  double wall = 0.0;
  double cpu = 0.0;
};

template <class Work>
Rate measure_rate(double bytes, Work work) {
  const std::clock_t cpu = std::clock();
  const Clock::time_point start = Clock::now();
  work();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return {bytes / seconds, bytes * CLOCKS_PER_SEC / static_cast<double>(std::clock() - cpu)};
}

struct Round {
  Rate read;
  Rate decode;  // of weights
  double ratio() const { return decode.wall / read.wall; }
  double cpu_ratio() const { return decode.cpu / read.cpu; }
};

template <class Value>
double best_of(const std::vector<Round>& rounds, Value value) {
  double best = 0.0;
  for (const Round& round : rounds) best = std::max(best, value(round));
  return best;
}

template <class Value>
double median_of(const std::vector<Round>& rounds, Value value) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(value(round));
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Model load_cpu_model(const std::string& path, const BenchOptions& options) {
  LoadOptions load;
  load.path = path;
  load.threads = options.threads;
  load.device = "cpu";
  return load_model(load);
}

nlohmann::json measure(const std::string& path, MemoryReader& reader, const BenchOptions& options) {
  constexpr int kSteps = 4;  // of a round: it is over before the machine's other work has changed much
  Model model = load_cpu_model(path, options);
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
  while (rounds.size() < kFewest || Clock::now() - begin < std::chrono::duration<double>(options.model_seconds)) {
    if (static_cast<std::int64_t>(sequence.tokens().size()) + kSteps > model.context()) sequence.clear();
    Round round;
    round.read = measure_rate(static_cast<double>(reader.bytes()), [&] { reader.pass(stream); });
    round.decode = measure_rate(static_cast<double>(info.decode_bytes) * kSteps, [&] {
      for (int i = 0; i < kSteps; ++i) step();
    });
    rounds.push_back(round);
  }
  const double read = best_of(rounds, [](const Round& round) { return round.read.wall; });
  const double decode = best_of(rounds, [](const Round& round) { return round.decode.wall; });
  const double tokens = decode / static_cast<double>(info.decode_bytes);
  const double median = median_of(rounds, [](const Round& round) { return round.ratio(); });
  const double cpu = median_of(rounds, [](const Round& round) { return round.cpu_ratio(); });
  const std::string name = fs::path(path).filename().string();
  print("{:<24} {:>10} {:>10} {:>10.1f} {:>8.1f} {:>8.1f} {:>8.2f} {:>8.2f} {:>8.2f}\n", name,
        format_bytes(info.decode_bytes), format_bytes(2 * info.state_bytes), tokens, decode * 1e-9, read * 1e-9,
        decode / read, median, cpu);
  flush_output();
  return {{"op", "model"},
          {"file", name},
          {"threads", model.threads()},
          {"bytes_per_token", info.decode_bytes},
          {"tokens_per_second", tokens},
          {"decode_bytes_per_second", decode},
          {"read_bytes_per_second", read},
          {"ratio", decode / read},
          {"median_ratio", median},
          {"median_cpu_ratio", cpu},
          {"rounds", rounds.size()}};
}

}  // namespace

int bench_model(const BenchOptions& options) {
  if (options.device != "cpu") return bench_model_on_device(options);
  const TemporaryFolder folder;
  std::vector<std::string> paths = options.models;
  if (rank_count() > 1 && paths.size() != 1) {
    throw std::runtime_error("several ranks run one model, which all of them can read: name it with -m");
  }
  if (!is_first_rank()) {
    load_cpu_model(paths.front(), options);  // and follows rank 0
  }
  if (paths.empty()) {
    for (const char* type : {"Q4_K", "Q8_0"}) paths.push_back(synthesize_into(folder, type, options.gigabytes));
  }
  MemoryReader reader(std::int64_t{2} << 30);
  print(
      "Decoding with one sequence. Each round reads 2 GiB of memory and decodes a few tokens. `ratio` is the best "
      "round of\n"
      "one over the best of the other, `median` that of the ratios within a round, `cpu` the same by processor time,\n"
      "which other work on the machine moves least.\n\n");
  print("{:<24} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "model", "weights", "state", "tokens/s", "GB/s",
        "read", "ratio", "median", "cpu");
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& path : paths) rows.push_back(measure(path, reader, options));
  if (!options.json.empty()) write_text(options.json, rows.dump(1) + "\n");
  return 0;
}

}  // namespace thalweg::app
