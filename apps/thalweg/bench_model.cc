// Decoding against the memory's speed, and prompts: bench --op model on the CPU.

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
#include "profile_table.h"
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

// Time of a prompt, by the clock and by the processors.
struct PromptTime {
  double seconds = 0.0;
  double cpu_seconds = 0.0;
};

// A prompt's time, least of several runs.
struct PromptRow {
  std::string model;
  std::int64_t tokens = 0;
  int runs = 0;
  PromptTime least;
  double median_seconds = 0.0;

  double rate() const { return static_cast<double>(tokens) / least.seconds; }
};

Model load_cpu_model(const std::string& path, const BenchOptions& options) {
  LoadOptions load;
  load.path = path;
  load.threads = options.threads;
  load.device = "cpu";
  load.types = options.state_types;
  return load_model(load);
}

class ModelBench {
 public:
  ModelBench(const std::string& path, const BenchOptions& options)
      : options_(options), name_(fs::path(path).filename().string()), model_(load_cpu_model(path, options)) {}

  nlohmann::json decode(MemoryReader& reader) {
    constexpr int kSteps = 4;  // of a round: it is over before the machine's other work has changed much
    const ModelInfo& info = model_.info();
    const Stream stream = Stream::cpu(options_.threads);
    Sequence sequence = model_.start();
    std::int32_t token = 0;
    const auto step = [&] {
      model_.step(sequence, token);
      token = (token + 1) % static_cast<std::int32_t>(info.vocabulary);
    };
    step();  // warms the caches
    std::vector<Round> rounds;
    const Clock::time_point begin = Clock::now();
    constexpr std::size_t kFewest = 8;
    while (rounds.size() < kFewest || Clock::now() - begin < std::chrono::duration<double>(options_.model_seconds)) {
      if (static_cast<std::int64_t>(sequence.tokens().size()) + kSteps > model_.context()) sequence.clear();
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
    const double median_decode = median_of(rounds, [](const Round& round) { return round.decode.wall; });
    print("{:<24} {:>10} {:>10} {:>10.1f} {:>8.1f} {:>8.1f} {:>8.2f} {:>8.2f} {:>8.2f}\n", name_,
          format_bytes(info.decode_bytes), format_bytes(2 * info.state_bytes), tokens, decode * 1e-9, read * 1e-9,
          decode / read, median, cpu);
    flush_output();
    return {{"op", "model"},
            {"phase", "decode"},
            {"file", name_},
            {"threads", model_.threads()},
            {"bytes_per_token", info.decode_bytes},
            {"tokens_per_second", tokens},
            {"median_tokens_per_second", median_decode / static_cast<double>(info.decode_bytes)},
            {"decode_bytes_per_second", decode},
            {"read_bytes_per_second", read},
            {"ratio", decode / read},
            {"median_ratio", median},
            {"median_cpu_ratio", cpu},
            {"rounds", rounds.size()}};
  }

  PromptRow prompt(std::int64_t tokens) {
    constexpr int kFewestRuns = 2;
    constexpr int kMostRuns = 8;
    if (tokens > model_.context()) {
      throw std::runtime_error(
          fmt::format("--prefill: {} tokens, and the context of {} has {}", tokens, name_, model_.context()));
    }
    std::mt19937_64 random(1);
    std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(model_.info().vocabulary - 1));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::int32_t& id : ids) id = token(random);
    WorkBar bar(fmt::format("{}: prompts of {} tokens", name_, tokens));
    Sequence sequence = model_.start();
    std::vector<PromptTime> times;
    const Clock::time_point begin = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    while (times.size() < kFewestRuns || (times.size() < kMostRuns && elapsed() < options_.model_seconds)) {
      sequence.clear();
      times.push_back(time_prompt(sequence, ids));
      const double runs = static_cast<double>(times.size());
      bar.update(std::max(std::min(elapsed() / options_.model_seconds, runs / kFewestRuns), runs / kMostRuns));
    }
    return summarize(tokens, times);
  }

  // Of prompts, their last chunk.
  void print_profiles() {
    constexpr std::int64_t kContext = 512;
    for (const std::int64_t tokens : options_.prefills) {
      if (tokens == 0) continue;
      const std::int64_t chunk = std::min<std::int64_t>(tokens, model_.prefill_chunk());
      print_profile(model_, chunk, chunk, tokens - chunk);
    }
    print_profile(model_, 1, 1, std::min(kContext, model_.context() - 1));
  }

  int threads() const { return model_.threads(); }

 private:
  PromptTime time_prompt(Sequence& sequence, const std::vector<std::int32_t>& ids) {
    const std::clock_t cpu = std::clock();
    const Clock::time_point start = Clock::now();
    model_.prefill(sequence, ids);
    return {std::chrono::duration<double>(Clock::now() - start).count(),
            static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC};
  }

  PromptRow summarize(std::int64_t tokens, const std::vector<PromptTime>& times) const {
    PromptRow row{name_, tokens, static_cast<int>(times.size()), times.front(), 0.0};
    std::vector<double> seconds;
    for (const PromptTime& time : times) {
      row.least.seconds = std::min(row.least.seconds, time.seconds);
      row.least.cpu_seconds = std::min(row.least.cpu_seconds, time.cpu_seconds);
      seconds.push_back(time.seconds);
    }
    std::sort(seconds.begin(), seconds.end());
    row.median_seconds = seconds[seconds.size() / 2];
    return row;
  }

  const BenchOptions& options_;
  std::string name_;
  Model model_;
};

void print_prompts(const std::vector<PromptRow>& rows) {
  if (rows.empty()) return;
  print(
      "\nPrompts of random tokens. `tokens/s` is that of the fastest run, `median` that of the middle one, `cpu s` the "
      "least\ntime of all processors together.\n\n");
  print("{:<24} {:>8} {:>10} {:>10} {:>10} {:>6}\n", "model", "tokens", "tokens/s", "median", "cpu s", "runs");
  for (const PromptRow& row : rows) {
    print("{:<24} {:>8} {:>10.1f} {:>10.1f} {:>10.2f} {:>6}\n", row.model, row.tokens, row.rate(),
          static_cast<double>(row.tokens) / row.median_seconds, row.least.cpu_seconds, row.runs);
  }
}

}  // namespace

int bench_model(const BenchOptions& given) {
  BenchOptions options = given;
  const bool on_cpu = options.device == "cpu";
  if (options.prefills.empty()) {
    options.prefills = {512, 2048};
    if (!on_cpu) options.prefills.insert(options.prefills.end(), {8192, 32768});
  }
  if (!on_cpu) return bench_model_on_device(options);
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
  std::vector<PromptRow> prompts;
  for (const std::string& path : paths) {
    ModelBench bench(path, options);
    rows.push_back(bench.decode(reader));
    for (const std::int64_t tokens : options.prefills) {
      if (tokens == 0) continue;
      const PromptRow& row = prompts.emplace_back(bench.prompt(tokens));
      rows.push_back({{"op", "model"},
                      {"phase", "prefill"},
                      {"file", row.model},
                      {"threads", bench.threads()},
                      {"tokens", row.tokens},
                      {"tokens_per_second", row.rate()},
                      {"seconds", row.least.seconds},
                      {"median_seconds", row.median_seconds},
                      {"cpu_seconds", row.least.cpu_seconds},
                      {"runs", row.runs}});
    }
    if (options.profile) bench.print_profiles();
  }
  print_prompts(prompts);
  if (!options.json.empty()) write_text(options.json, rows.dump(1) + "\n");
  return 0;
}

}  // namespace thalweg::app
