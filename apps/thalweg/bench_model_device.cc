// bench --op model --device cuda: a model's prefill and decode at several sizes, against what bytes and flops allow.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "commands.h"
#include "core/device_functions.h"
#include "model_options.h"
#include "ops/backends.h"
#include "output_file.h"
#include "streams.h"

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
  double prefill_flops(double tokens) const {
    return 2.0 * tokens * (dense_parameters + expert_parameters * experts_used) +
           attention_flops * tokens * tokens / 2.0;
  }
};

struct Row {
  std::string phase;
  std::int64_t batch = 1;
  std::int64_t tokens = 0;  // of a prefill, or in the context before the decoding
  double seconds = 0;       // of a prefill or a step
  double floor = 0;

  double rate() const { return static_cast<double>(phase == "prefill" ? tokens : batch) / seconds; }
};

class DeviceBench {
 public:
  DeviceBench(const BenchOptions& options, std::string path, const DeviceSpeed& speed)
      : options_(options), path_(std::move(path)), speed_(speed) {}

  std::vector<Row> run() {
    single();
    for (const std::int64_t batch : {8, 32, 64, 128}) decode_batch(batch, 512);
    for (const std::int64_t batch : {8, 32}) decode_batch(batch, 32000);
    return rows_;
  }

 private:
  static constexpr std::int64_t kSteps = 128;
  static constexpr std::int64_t kWarmUp = 16;

  Model load(int sequences, std::int64_t context) const {
    LoadOptions load;
    load.path = path_;
    load.threads = options_.threads;
    load.device = options_.device;
    load.context = context;
    return load_model(load, sequences);
  }

  static std::vector<std::int32_t> prompt(const Model& model, std::int64_t tokens) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < tokens; ++i) {
      ids.push_back(static_cast<std::int32_t>((i * 7919 + 13) % model.info().vocabulary));
    }
    return ids;
  }

  void add(Row row, const Work& work) {
    row.floor = row.phase == "prefill"
                    ? work.prefill_flops(static_cast<double>(row.tokens)) / speed_.matrix_flops_per_second
                    : work.step_bytes(static_cast<double>(row.batch), static_cast<double>(row.tokens)) /
                          speed_.bytes_per_second;
    print("{:<8} {:>6} {:>8} {:>12.1f} {:>12.3f} {:>12.3f} {:>8.2f}\n", row.phase, row.batch, row.tokens, row.rate(),
          row.seconds * 1e3, row.floor * 1e3, row.seconds / row.floor);
    flush_output();
    rows_.push_back(row);
  }

  void single() {
    Model model = load(1, 33024);
    const Work work(model.info());
    for (const std::int64_t tokens : {512, 2048, 8192, 32768}) {
      Sequence sequence = model.start();
      const std::vector<std::int32_t> ids = prompt(model, tokens);
      std::vector<double> seconds;
      for (int i = 0; i < 4; ++i) {
        sequence.clear();
        const Clock::time_point start = Clock::now();
        model.prefill(sequence, ids);
        if (i > 0) seconds.push_back(seconds_since(start));
      }
      std::sort(seconds.begin(), seconds.end());
      add({"prefill", 1, tokens, seconds[seconds.size() / 2]}, work);
    }
    decode(model, 1, 512, work);
    decode(model, 1, 32768, work);
    if (options_.profile) {
      print_profile(model, 1, 1, 512);
      print_profile(model, std::min<std::int64_t>(2048, model.prefill_chunk()), 2048, 0);
    }
  }

  void decode_batch(std::int64_t batch, std::int64_t context) {
    try {
      Model model = load(static_cast<int>(batch), context + kSteps + 8);
      decode(model, batch, context, Work(model.info()));
      if (options_.profile) print_profile(model, batch, 1, context);
    } catch (const std::exception& error) {
      print("decode   {:>6} {:>8} left out: {}\n", batch, context, error.what());
    }
  }

  void decode(Model& model, std::int64_t batch, std::int64_t context, const Work& work) {
    std::vector<Sequence> sequences;
    std::vector<Sequence*> handles;
    std::vector<SequenceInput> inputs;
    const std::vector<std::int32_t> ids = prompt(model, context);
    for (std::int64_t n = 0; n < batch; ++n) sequences.push_back(model.start());
    for (Sequence& sequence : sequences) {
      handles.push_back(&sequence);
      inputs.push_back({&sequence, ids});
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
    add({"decode", batch, context, seconds_since(start) / static_cast<double>(steps - kWarmUp)}, work);
  }

  static void print_profile(Model& model, std::int64_t tokens, std::int64_t tokens_each, std::int64_t context) {
    const std::vector<OperationTime> times = model.profile(tokens, std::min(tokens, tokens_each), context);
    double total = 0.0;
    for (const OperationTime& time : times) total += time.seconds;
    print("\na step of {} tokens, {} each after {}: {:.1f} us as the sum of its operations\n", tokens,
          std::min(tokens, tokens_each), context, total * 1e6);
    for (const OperationTime& time : times) {
      print("  {:<26} {:<22} {:>5} calls {:>10.1f} us {:>6.1f} %\n", time.operation, time.kernel, time.calls,
            time.seconds * 1e6, 100.0 * time.seconds / total);
    }
    print("\n");
    flush_output();
  }

  const BenchOptions& options_;
  std::string path_;
  const DeviceSpeed& speed_;
  std::vector<Row> rows_;
};

}  // namespace

int bench_model_on_device(const BenchOptions& options) {
  const std::optional<Device> device = device_from_name(options.device);
  if (options.models.empty()) {
    throw std::runtime_error("name the models to run: `thalweg synth --like Qwen3.5-35B-A3B FILE` writes one");
  }
  const DeviceFunctions* functions = device ? backend(device->type).device : nullptr;
  if (functions == nullptr || functions->speed == nullptr)
    throw std::runtime_error("--device: name a GPU, as in cuda:0");
  const DeviceSpeed speed = functions->speed(*device);
  print("A copy moves {:.0f} GB/s, matrices of 16 bits allow {:.0f} TFLOP/s by the clock.\n\n",
        speed.bytes_per_second * 1e-9, speed.matrix_flops_per_second * 1e-12);
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
