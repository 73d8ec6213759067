// bench --op model --device cuda: a model's prefill and decode at several sizes, against what bytes and flops allow.

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>

#include "commands.h"
#include "core/device_functions.h"
#include "model_options.h"
#include "ops/backends.h"
#include "output_file.h"
#include "profile_table.h"
#include "streams.h"
#include "thalweg/error.h"

namespace thalweg::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What a step of a model must move and compute, from the file's tensors.
struct Work {
  double dense_bytes = 0, expert_bytes = 0;  // of weights that a step reads whatever its tokens, and of all experts
  double dense_parameters = 0, expert_parameters = 0;
  double state_bytes = 0, cache_token_bytes = 0;
  double attention_flops = 0;  // of a pair of tokens
  double experts_used = 0;     // share of them

  explicit Work(const ModelInfo& info)
      : state_bytes(static_cast<double>(info.state_bytes)),
        cache_token_bytes(static_cast<double>(info.cache_token_bytes)),
        experts_used(info.experts > 0 ? static_cast<double>(info.experts_used) / info.experts : 0.0) {
    for (const TensorInfo& tensor : info.tensors) {
      if (!tensor.used || tensor.operation == "embedding") continue;
      double size = 1.0;
      for (const std::int64_t extent : tensor.shape) size *= static_cast<double>(extent);
      const bool experts = tensor.shape.size() == 3 && tensor.operation == "moe_ffn";
      (experts ? expert_bytes : dense_bytes) += static_cast<double>(tensor.bytes);
      (experts ? expert_parameters : dense_parameters) += size;
    }
    for (const LayerKind kind : info.layers) {
      if (kind == LayerKind::kAttention) attention_flops += 4.0 * info.attention_heads * info.head_dim;
    }
  }

  double step_bytes(double batch, double context) const {
    const double experts_hit = 1.0 - std::pow(1.0 - experts_used, batch);
    return dense_bytes + expert_bytes * experts_hit + batch * (2.0 * state_bytes + context * cache_token_bytes);
  }
  double prefill_flops(double tokens, double before) const {
    return 2.0 * tokens * (dense_parameters + expert_parameters * experts_used) +
           attention_flops * tokens * (before + tokens / 2.0);
  }
};

struct Row {
  std::string phase;
  std::int64_t batch = 1;
  std::int64_t tokens = 0;  // of a prefill, or in the context before the decoding
  std::int64_t before = 0;  // tokens that a prefill continues
  double seconds = 0;       // of a prefill or a step
  double floor = 0;

  double rate() const { return static_cast<double>(phase == "prefill" ? tokens : batch) / seconds; }
};

class DeviceBench {
 public:
  DeviceBench(const BenchOptions& options, std::string path, const DeviceSpeed& speed)
      : options_(options),
        path_(std::move(path)),
        speed_(speed),
        prefills_(options.prefills != std::vector<std::int64_t>{0}) {}

  std::vector<Row> run() {
    std::map<std::int64_t, std::vector<std::int64_t>> decodes;  // tokens by sequences
    for (const std::string& text : options_.decodes) {
      if (const std::optional<DecodeRow> row = decode_row_of(text)) decodes[row->sequences].push_back(row->tokens);
    }
    if (prefills_) decodes.try_emplace(1);
    for (const auto& [sequences, contexts] : decodes) measure(sequences, contexts);
    return rows_;
  }

 private:
  static constexpr std::int64_t kSteps = 128;
  static constexpr std::int64_t kWarmUp = 16;
  static constexpr int kPrompts = 4;  // of a length, the first to warm up

  Model load(int sequences, std::int64_t context) const {
    LoadOptions load;
    load.path = path_;
    load.threads = options_.threads;
    load.device = options_.device;
    load.rank_split = options_.rank_split;
    load.types = options_.state_types;
    load.batch_invariant = options_.batch_invariant;
    load.context = context;
    return load_model(load, sequences);
  }

  // Random tokens: sequences that say the same would choose the same experts.
  static std::vector<std::int32_t> prompt(const Model& model, std::int64_t tokens, std::int64_t sequence = 0) {
    std::mt19937_64 random(static_cast<std::uint64_t>(sequence));
    std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(model.info().vocabulary - 1));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::int32_t& id : ids) id = token(random);
    return ids;
  }

  void add(Row row, const Work& work) {
    const auto tokens = static_cast<double>(row.tokens);
    const auto before = static_cast<double>(row.before);
    row.floor = work.step_bytes(static_cast<double>(row.batch), tokens) / speed_.bytes_per_second;
    if (row.phase == "prefill") {
      // A few tokens read the weights as a step of as many sequences does, and one cache.
      const double bytes = work.step_bytes(tokens, 0.0) - (tokens - 1) * 2.0 * work.state_bytes;
      row.floor = std::max(work.prefill_flops(tokens, before) / speed_.matrix_flops_per_second,
                           (bytes + before * work.cache_token_bytes) / speed_.bytes_per_second);
    }
    print("{:<8} {:>6} {:>8} {:>12.1f} {:>12.3f} {:>12.3f} {:>8.2f}\n", row.phase, row.batch, row.tokens, row.rate(),
          row.seconds * 1e3, row.floor * 1e3, row.seconds / row.floor);
    flush_output();
    rows_.push_back(row);
  }

  // Prefills, with one sequence, and decoding after each of the contexts.
  void measure(std::int64_t sequences, const std::vector<std::int64_t>& contexts) {
    std::int64_t most = 0;
    for (const std::int64_t context : contexts) most = std::max(most, context);
    const bool prefills = sequences == 1 && prefills_;
    const std::int64_t longest = *std::max_element(options_.prefills.begin(), options_.prefills.end());
    if (prefills) most = std::max(most, options_.after + kPrompts * longest);
    try {
      Model model = load(static_cast<int>(sequences), most + kSteps + 8);
      const Work work(model.info());
      if (prefills) {
        for (const std::int64_t tokens : options_.prefills) prefill(model, tokens, work);
        if (options_.profile) {
          const std::int64_t tokens = std::min<std::int64_t>(longest, model.prefill_chunk());
          print_profile(model, tokens, tokens, options_.after);
        }
      }
      for (const std::int64_t context : contexts) {
        decode(model, sequences, context, work);
        if (options_.profile) print_profile(model, sequences, 1, context);
      }
    } catch (const RankIsDone&) {
      // This rank has followed rank 0, whose numbers they are.
    } catch (const Error& error) {
      if (rank_count() > 1) throw;  // the ranks no longer run together
      print("batch {} left out: {}\n", sequences, error.what());
    }
  }

  void prefill(Model& model, std::int64_t tokens, const Work& work) {
    Sequence sequence = model.start();
    const std::vector<std::int32_t> ids = prompt(model, tokens);
    std::vector<double> seconds;
    if (options_.after > 0) model.prefill(sequence, prompt(model, options_.after, 1));
    for (int i = 0; i < kPrompts; ++i) {
      if (options_.after == 0) sequence.clear();
      const Clock::time_point start = Clock::now();
      model.prefill(sequence, ids);
      if (i > 0) seconds.push_back(seconds_since(start));
    }
    std::sort(seconds.begin(), seconds.end());
    add({"prefill", 1, tokens, options_.after, seconds[seconds.size() / 2]}, work);
  }

  void decode(Model& model, std::int64_t batch, std::int64_t context, const Work& work) {
    std::vector<Sequence> sequences;
    std::vector<Sequence*> handles;
    std::vector<SequenceInput> inputs;
    std::vector<std::vector<std::int32_t>> prompts;
    for (std::int64_t n = 0; n < batch; ++n) {
      sequences.push_back(model.start());
      prompts.push_back(prompt(model, context, n));
    }
    for (std::size_t n = 0; n < sequences.size(); ++n) {
      handles.push_back(&sequences[n]);
      inputs.push_back({&sequences[n], prompts[n]});
    }
    model.prefill(inputs);
    const std::vector<Sampling> sampling(static_cast<std::size_t>(batch));
    Clock::time_point start;
    std::int64_t steps = 0;
    model.decode(handles, sampling, kSteps, [&](std::span<const std::int32_t>) {
      if (++steps == kWarmUp) start = Clock::now();
      return true;
    });
    if (steps <= kWarmUp) throw std::runtime_error("the sequences ended");
    add({"decode", batch, context, 0, seconds_since(start) / static_cast<double>(steps - kWarmUp)}, work);
  }

  const BenchOptions& options_;
  std::string path_;
  DeviceSpeed speed_;
  bool prefills_;
  std::vector<Row> rows_;
};

}  // namespace

std::optional<DecodeRow> decode_row_of(std::string_view text) {
  constexpr std::int64_t kMost = 1 << 24;
  DecodeRow row;
  const char* const end = text.data() + text.size();
  const auto [cross, error] = std::from_chars(text.data(), end, row.sequences);
  if (error != std::errc() || cross == end || *cross != 'x') return std::nullopt;
  const auto [stop, second_error] = std::from_chars(cross + 1, end, row.tokens);
  const auto in_range = [](std::int64_t value) { return value >= 1 && value <= kMost; };
  if (second_error != std::errc() || stop != end || !in_range(row.sequences) || !in_range(row.tokens)) {
    return std::nullopt;
  }
  return row;
}

int bench_model_on_device(const BenchOptions& options) {
  const std::optional<Device> device = rank_device(options.device);
  if (options.models.empty()) {
    throw std::runtime_error("name the models to run: `thalweg synth --like Qwen3.5-35B-A3B FILE` writes one");
  }
  const DeviceFunctions* functions = device ? backend(device->type).device : nullptr;
  if (functions == nullptr || functions->speed == nullptr)
    throw std::runtime_error("--device: name a GPU, as in cuda:0");
  if (!is_first_rank()) {
    for (const std::string& path : options.models) DeviceBench(options, path, {}).run();
    throw RankIsDone();
  }
  DeviceSpeed speed = functions->speed(*device);
  print("A copy moves {:.0f} GB/s, matrices of 16 bits allow {:.0f} TFLOP/s by the clock.\n\n",
        speed.bytes_per_second * 1e-9, speed.matrix_flops_per_second * 1e-12);
  if (rank_count() > 1) {
    print("Floors are those of {} such devices.\n\n", rank_count());
    speed.bytes_per_second *= rank_count();
    speed.matrix_flops_per_second *= rank_count();
  }
  nlohmann::json results = nlohmann::json::array();
  std::string csv = "model,phase,batch,tokens,tokens_per_second,ms,floor_ms\n";
  for (const std::string& path : options.models) {
    const std::string name = std::filesystem::path(path).filename().string();
    print("{}\n{:<8} {:>6} {:>8} {:>12} {:>12} {:>12} {:>8}\n", name, "phase", "batch", "tokens", "tokens/s", "ms",
          "floor ms", "x floor");
    for (const Row& row : DeviceBench(options, path, speed).run()) {
      results.push_back({{"model", name},
                         {"phase", row.phase},
                         {"batch", row.batch},
                         {"tokens", row.tokens},
                         {"before", row.before},
                         {"tokens_per_second", row.rate()},
                         {"seconds", row.seconds},
                         {"floor_seconds", row.floor}});
      csv += fmt::format("{},{},{},{},{:.1f},{:.4f},{:.4f}\n", name, row.phase, row.batch, row.tokens, row.rate(),
                         row.seconds * 1e3, row.floor * 1e3);
    }
  }
  if (!options.json.empty()) write_text(options.json, results.dump(1) + "\n");
  if (!options.csv.empty()) write_text(options.csv, csv);
  return 0;
}

}  // namespace thalweg::app
