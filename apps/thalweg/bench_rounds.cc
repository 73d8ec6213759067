// bench --op draft: what a round with drafts costs, and what it gives where drafts are right with a known probability.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "commands.h"
#include "decode/drafter.h"
#include "engine/model_slots.h"
#include "model_options.h"
#include "streams.h"

namespace thalweg::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPrompt = 512;
constexpr int kWarmUp = 6;  // the first rounds of a size load kernels and are recorded
constexpr int kRounds = 48;
constexpr double kRight = 0.8;  // of drafts

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Measured {
  double round = 0;   // seconds, the median
  double passes = 0;  // of the MTP layer before it
  double tokens = 0;  // kept of each sequence in a round
};

class Rounds {
 public:
  Rounds(Model& model, std::int64_t sequences) : model_(model), sampling_(static_cast<std::size_t>(sequences)) {
    for (std::int64_t n = 0; n < sequences; ++n) sequences_.push_back(model.start());
  }

  // Seconds of a step of plain decoding.
  double step() {
    prefill();
    std::vector<Sequence*> handles;
    for (Sequence& sequence : sequences_) handles.push_back(&sequence);
    std::vector<double> seconds;
    Clock::time_point last = Clock::now();
    model_.decode(
        handles, sampling_, kWarmUp + kRounds,
        [&](std::span<const std::int32_t>) {
          seconds.push_back(seconds_since(last));
          last = Clock::now();
          return true;
        },
        {}, true);
    return median({seconds.begin() + kWarmUp, seconds.end()});
  }

  Measured round(std::int64_t drafts) {
    prefill();
    const bool by_layer = model_.info().mtp_layers == 1 && drafts > 0;
    std::vector<decode::Drafter> drafters;
    for (const Sequence& sequence : sequences_) {
      drafters.emplace_back(DraftMode::kMtp, std::max(1, static_cast<int>(drafts)), sequence.tokens());
    }
    std::vector<double> seconds;
    std::vector<double> passes;
    std::int64_t kept = 0;
    for (int i = 0; i < kWarmUp + kRounds; ++i) {
      std::vector<std::vector<std::int32_t>> tokens(sequences_.size());
      for (std::size_t n = 0; n < sequences_.size(); ++n) {
        tokens[n].push_back(model_.sample(sequences_[n], sampling_[n]));
      }
      if (by_layer) passes.push_back(make_drafts(drafts, tokens, drafters));
      std::vector<SequenceInput> batch;
      for (std::size_t n = 0; n < sequences_.size(); ++n) {
        for (std::int64_t d = 0; d < drafts; ++d) tokens[n].push_back(token_(random_));
        batch.push_back({&sequences_[n], tokens[n]});
      }
      const Clock::time_point begin = Clock::now();
      const std::vector<std::int64_t> counts =
          model_.verify(batch, sampling_, [&](std::size_t, std::int32_t) { return right_(random_); });
      if (i < kWarmUp) continue;
      seconds.push_back(seconds_since(begin));
      for (const std::int64_t count : counts) kept += count;
    }
    if (by_layer) passes.erase(passes.begin(), passes.begin() + kWarmUp);
    return {median(seconds), by_layer ? median(passes) : 0.0,
            static_cast<double>(kept) / static_cast<double>(kRounds * sequences_.size())};
  }

 private:
  // Seconds of passes that make so many drafts of each sequence. They are thrown away: random weights foresee nothing.
  double make_drafts(std::int64_t drafts, const std::vector<std::vector<std::int32_t>>& next,
                     std::vector<decode::Drafter>& drafters) {
    engine::ModelSlots slots(model_);
    std::vector<engine::ModelSlots::Drafted> drafted;
    for (std::size_t n = 0; n < sequences_.size(); ++n) {
      drafted.push_back({&sequences_[n], next[n].front(), drafts, &drafters[n]});
    }
    const Clock::time_point begin = Clock::now();
    slots.make_drafts(drafted);
    const double seconds = seconds_since(begin);
    // As if all had been right, so that the next round has as many as it may.
    for (decode::Drafter& drafter : drafters) {
      drafter.judge(static_cast<std::int64_t>(drafter.drafts().size()), static_cast<std::int64_t>(drafters.size()),
                    slots.round_costs());
    }
    return seconds;
  }

  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  }

  // Random tokens: sequences that say the same would choose the same experts.
  void prefill() {
    for (Sequence& sequence : sequences_) {
      std::vector<std::int32_t> prompt(kPrompt);
      for (std::int32_t& token : prompt) token = token_(random_);
      sequence.clear();
      model_.prefill(sequence, prompt);
    }
  }

  Model& model_;
  std::vector<Sequence> sequences_;
  std::vector<Sampling> sampling_;
  std::mt19937_64 random_{1};
  std::uniform_int_distribution<std::int32_t> token_{0, static_cast<std::int32_t>(model_.info().vocabulary - 1)};
  std::bernoulli_distribution right_{kRight};
};

}  // namespace

nlohmann::json bench_rounds(const BenchOptions& options, const std::string& path) {
  const bool on_host = options.device == "cpu";
  const std::vector<std::int64_t> sizes = on_host ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 8, 32};
  LoadOptions load;
  load.path = path;
  load.threads = options.threads;
  load.device = options.device;
  load.context = 1536;
  const auto load_one = [&] { return load_model(load, static_cast<int>(sizes.back())); };
  std::vector<double> steps;
  {
    Model model = load_one();
    load.draft = model.info().mtp_layers == 1 ? DraftMode::kMtp : DraftMode::kLookup;
    for (const std::int64_t sequences : sizes) steps.push_back(Rounds(model, sequences).step());
  }
  Model model = load_one();
  nlohmann::json rows = nlohmann::json::array();
  print("  rounds after {} tokens, each draft right with probability {}\n", kPrompt, kRight);
  print("  {:>9} {:>7} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10}\n", "sequences", "drafts", "ms", "over step",
        "MTP ms", "with it", "tokens/round", "tokens/s", "over off");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t sequences = sizes[i];
    Rounds rounds(model, sequences);
    for (const std::int64_t drafts : {0, 1, 2, 3, 5, 7}) {
      if (sequences * (1 + drafts) > model.round_tokens()) continue;
      const Measured measured = rounds.round(drafts);
      const double together = measured.round + measured.passes;
      const double rate = static_cast<double>(sequences) * measured.tokens / together;
      const double over = rate * steps[i] / static_cast<double>(sequences);
      print("  {:>9} {:>7} {:>10.3f} {:>10.2f} {:>10.3f} {:>10.2f} {:>12.2f} {:>10.1f} {:>10.2f}\n", sequences, drafts,
            measured.round * 1e3, measured.round / steps[i], measured.passes * 1e3, together / steps[i],
            measured.tokens, rate, over);
      flush_output();
      rows.push_back({{"sequences", sequences},
                      {"drafts", drafts},
                      {"seconds", measured.round},
                      {"over_step", measured.round / steps[i]},
                      {"mtp_seconds", measured.passes},
                      {"over_step_with_mtp", together / steps[i]},
                      {"tokens_per_round", measured.tokens},
                      {"tokens_per_second", rate},
                      {"over_off", over}});
    }
  }
  return rows;
}

}  // namespace thalweg::app
