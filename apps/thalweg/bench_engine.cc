// bench --op engine: what many requests at once cost over one batch, and what the prefix cache saves.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "commands.h"
#include "model_options.h"
#include "output_file.h"
#include "streams.h"
#include "thalweg/engine.h"

namespace thalweg::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

class EngineBench {
 public:
  EngineBench(const BenchOptions& options, const std::string& path) : options_(options), path_(path) {}

  nlohmann::json run() {
    streams();
    long_prompt_among_others();
    warm_prompt();
    return results_;
  }

 private:
  static constexpr std::int64_t kLong = 30'000;

  Model load(int sequences, std::int64_t context) const {
    LoadOptions load;
    load.path = path_;
    load.threads = options_.threads;
    load.device = options_.device;
    load.context = context;
    return load_model(load, sequences);
  }

  // Ids that differ from the first on for each `kind`.
  static std::vector<std::int32_t> prompt(const Model& model, std::int64_t kind, std::int64_t tokens) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < tokens; ++i) {
      ids.push_back(static_cast<std::int32_t>((i * 7919 + kind * 104'729 + 13) % model.info().vocabulary));
    }
    return ids;
  }

  static Request request(std::vector<std::int32_t> prompt, std::int64_t tokens) {
    Request made;
    made.prompt = std::move(prompt);
    made.max_tokens = tokens;
    made.ignore_end = true;
    return made;
  }

  static Usage finish(TokenStream stream) {
    Usage usage;
    for (Output output; stream.next(output);) {
      if (output.finish == FinishReason::kError) throw std::runtime_error(output.error);
      usage = output.usage;
    }
    return usage;
  }

  void add(const std::string& name, double value, const std::string& unit, const std::string& what) {
    print("  {:<34} {:>10.3f} {:<8} {}\n", name, value, unit, what);
    flush_output();
    results_.push_back({{"name", name}, {"value", value}, {"unit", unit}});
  }

  // The same prompts and as many tokens of each: Model::prefill and decode of one batch, and requests that come at
  // once.
  void streams() {
    constexpr int kStreams = 64;
    constexpr std::int64_t kPrompt = 100;
    constexpr std::int64_t kTokens = 128;
    const std::int64_t context = kPrompt + kTokens + 8;
    double batch = 0;
    {
      Model model = load(kStreams, context);
      batch = time_of_batch(model, kStreams, kPrompt, kTokens);
    }
    Engine engine(load(kStreams, context));
    const Clock::time_point begin = Clock::now();
    std::vector<TokenStream> streams;
    for (int i = 0; i < kStreams; ++i) {
      streams.push_back(engine.stream(request(prompt(engine.model(), i, kPrompt), kTokens)));
    }
    for (TokenStream& stream : streams) finish(std::move(stream));
    const double seconds = seconds_between(begin, Clock::now());
    const double tokens = static_cast<double>(kStreams) * kTokens;
    add("batch of 64", tokens / batch, "tokens/s", "one batch: prompts of 100 tokens, then 128 of each");
    add("64 streams", tokens / seconds, "tokens/s", "the same as requests");
    add("64 streams over the batch", batch / seconds, "", "at least 0.9 is wanted");
    const EngineStats stats = engine.stats();
    add("runs of the model", static_cast<double>(stats.steps), "",
        fmt::format("{:.3f} s of {:.3f} s", stats.step_seconds, seconds));
    add("bookkeeping over steps", stats.bookkeeping_seconds / stats.step_seconds, "", "at most 0.01 is wanted");
  }

  // In seconds. The end tokens that random prompts lead to are tokens like others, as in the requests.
  static double time_of_batch(Model& model, int count, std::int64_t prompt_tokens, std::int64_t tokens) {
    std::vector<Sequence> sequences;
    std::vector<Sequence*> handles;
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<SequenceInput> inputs;
    for (int i = 0; i < count; ++i) {
      sequences.push_back(model.start());
      prompts.push_back(prompt(model, i, prompt_tokens));
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      handles.push_back(&sequences[i]);
      inputs.push_back({&sequences[i], prompts[i]});
    }
    const Clock::time_point begin = Clock::now();
    model.prefill(inputs);
    model.decode(handles, std::vector<Sampling>(handles.size()), tokens, {}, {}, true);
    return seconds_between(begin, Clock::now());
  }

  void long_prompt_among_others() {
    constexpr int kOthers = 32;
    constexpr std::int64_t kTokens = 20'000;
    std::mutex mutex;
    std::vector<Clock::time_point> steps;  // of the first, since all of them generate
    std::vector<bool> begun(kOthers);
    Engine engine(load(kOthers + 1, kLong + 512));  // after what its callbacks use
    std::vector<RequestId> ids;
    for (int i = 0; i < kOthers; ++i) {
      ids.push_back(engine.submit(request(prompt(engine.model(), i, 100), kTokens), [&, i](const Output&) {
        const std::lock_guard lock(mutex);
        begun[static_cast<std::size_t>(i)] = true;
        if (i == 0 && std::find(begun.begin(), begun.end(), false) == begun.end()) steps.push_back(Clock::now());
      }));
    }
    const auto wait_for_steps = [&](std::size_t count) {
      while (true) {
        {
          const std::lock_guard lock(mutex);
          if (steps.size() >= count) return steps.size();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    };
    constexpr std::size_t kBefore = 100;
    const std::size_t first = wait_for_steps(20);
    const std::size_t last = wait_for_steps(first + kBefore);
    const Usage usage = finish(engine.stream(request(prompt(engine.model(), 1000, kLong), 1)));
    std::size_t end = 0;
    {
      const std::lock_guard lock(mutex);
      end = steps.size();
    }
    wait_for_steps(end + kBefore);
    std::vector<Clock::time_point> seen;
    {
      const std::lock_guard lock(mutex);
      seen = steps;
    }
    for (const RequestId id : ids) engine.cancel(id);
    const auto step = [&](std::size_t from, std::size_t to) {
      return seconds_between(seen[from - 1], seen[to - 1]) / static_cast<double>(to - from);
    };
    // Their contexts grow meanwhile.
    const double alone = (step(first, last) + step(end, end + kBefore)) / 2;
    const double during = step(last, end);
    add("step of 32 streams", alone * 1e3, "ms", "mean of before and after");
    add("while a prompt of 30,000 runs", during * 1e3, "ms", "");
    add("slowed down by", during / alone, "", "at most 1.5 is wanted");
    add("first token of that prompt", usage.queue_seconds + usage.prompt_seconds, "s", "");
  }

  void warm_prompt() {
    EngineOptions options;
    options.cache_bytes = std::uint64_t{4} << 30;
    Engine engine(load(1, kLong + 512), options);
    std::vector<std::int32_t> text = prompt(engine.model(), 1, kLong);
    const double cold = finish(engine.stream(request(text, 1))).prompt_seconds;
    const std::vector<std::int32_t> more = prompt(engine.model(), 2, 100);
    text.insert(text.end(), more.begin(), more.end());
    Clock::time_point begin = Clock::now();
    const Usage usage = finish(engine.stream(request(text, 1)));
    const double warm = seconds_between(begin, Clock::now());
    add("first token, 30,000 tokens cold", cold, "s", "");
    add("100 more, the others cached", warm, "s", fmt::format("{} tokens cached", usage.cached_tokens));
    add("warm over cold", warm / cold, "", "at most 0.05 is wanted");
    const EngineStats stats = engine.stats();
    add("bookkeeping over steps", stats.bookkeeping_seconds / stats.step_seconds, "", "at most 0.01 is wanted");
    add("cache", static_cast<double>(stats.cache_bytes + stats.cache_device_bytes) * 1e-6, "MB",
        fmt::format("{} checkpoints", stats.cache_checkpoints));
  }

  const BenchOptions& options_;
  const std::string& path_;
  nlohmann::json results_ = nlohmann::json::array();
};

}  // namespace

int bench_engine(const BenchOptions& options) {
  if (options.models.empty()) throw std::runtime_error("name the models to run with -m");
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& path : options.models) {
    const std::string name = std::filesystem::path(path).filename().string();
    print("{}\n", name);
    results.push_back({{"model", name}, {"results", EngineBench(options, path).run()}});
  }
  if (!options.json.empty()) write_text(options.json, results.dump(1) + "\n");
  return 0;
}

}  // namespace thalweg::app
