// `thalweg bench --suite decode`: the recurrence and the fused step of the gated delta rule on a GPU, over batch sizes
// and tokens per step, at the head sizes of the published models.

#include <fmt/core.h>

#include <algorithm>
#include <regex>

#include "bench_check.h"
#include "cases/random.h"
#include "commands.h"
#include "core/device_functions.h"
#include "core/float16.h"
#include "device_fill.h"
#include "ops/backends.h"
#include "output_file.h"
#include "streams.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::app {
namespace {

constexpr std::int64_t kHk = 16;
constexpr std::int64_t kHv = 32;
constexpr std::int64_t kHead = 128;  // K and V
constexpr std::int64_t kTaps = 4;
constexpr std::int64_t kChannels = 2 * kHk * kHead + kHv * kHead;
constexpr std::int64_t kState = kHv * kHead * kHead;  // elements of a sequence

struct Row {
  bool fused = false;
  std::int64_t batch = 1;
  std::int64_t tokens = 1;
  DType state = DType::kF32;
  bool snapshots = false;
  bool drafts = false;  // all but the first token; those of the step before are replayed
  double bar_us = 0.0;  // what it should take at most; 0: nothing set

  std::string name() const {
    return fmt::format("{} B{} T{} {}{}{}", fused ? "step" : "recurrence", batch, tokens, dtype_name(state),
                       snapshots ? " snapshots" : "", drafts ? " drafts" : "");
  }
  double state_bytes() const { return static_cast<double>(batch * bytes_of(state, kState)); }
  // The state read, and written once or after each token; activations, and the convolution's state. Inputs of drafts
  // are read, and kept for the next step.
  double bytes() const {
    const double states = state_bytes() * (1.0 + (snapshots ? static_cast<double>(tokens) : 1.0));
    const double activations = static_cast<double>(batch * tokens) * static_cast<double>(kChannels + kHv * kHead) * 2.0;
    const double conv = fused ? static_cast<double>(batch * kChannels * (kTaps - 1)) * 4.0 : 0.0;
    const double gate = fused ? static_cast<double>(batch * tokens * kHv * kHead) * 2.0 : 0.0;
    const double kept = drafts ? static_cast<double>(batch * (tokens - 1)) * static_cast<double>(kChannels) * 4.0 : 0.0;
    return states + activations + conv + gate + kept;
  }
};

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const bool fused : {false, true}) {
    for (const std::int64_t batch : {1, 4, 16, 64, 256, 1024}) rows.push_back({.fused = fused, .batch = batch});
    for (const std::int64_t batch : {1, 16, 64}) {
      for (const std::int64_t tokens : {2, 4, 8}) rows.push_back({.fused = fused, .batch = batch, .tokens = tokens});
    }
    for (const std::int64_t tokens : {4, 8}) {
      rows.push_back({.fused = fused, .batch = 64, .tokens = tokens, .snapshots = true});
    }
    for (const std::int64_t batch : {1, 64, 256}) {
      rows.push_back({.fused = fused, .batch = batch, .state = DType::kBF16});
    }
    for (const std::int64_t batch : {1, 8, 16, 64}) {
      if (fused) rows.push_back({.fused = true, .batch = batch, .tokens = 4, .drafts = true});
    }
  }
  for (Row& row : rows) {
    if (row.drafts && row.batch == 1) row.bar_us = 8.0;
    if (row.drafts && row.batch == 64) row.bar_us = 100.0;
    if (row.drafts) continue;
    if (row.batch == 1 && row.tokens == 1) row.bar_us = row.fused ? 6.0 : 4.5;
    if (row.batch == 64 && !row.snapshots && row.tokens == 4) row.bar_us = 85.0;
    if (row.batch == 64 && !row.snapshots && row.tokens == 8) row.bar_us = 110.0;
  }
  return rows;
}

std::vector<std::uint16_t> bf16_normals(std::size_t count, double scale) {
  cases::Random random(7);
  std::vector<std::uint16_t> values(count);
  for (std::uint16_t& value : values) value = f32_to_bf16(static_cast<float>(scale * random.normal()));
  return values;
}

// Memory for the largest row. A row's runs rotate over copies of its arguments, as many as fit, so that they do not
// find their states in the cache.
class Buffers {
 public:
  Buffers(const Stream& stream, const std::vector<Row>& rows) : stream_(stream) {
    std::int64_t state_bytes = kRotatedBytes;
    std::int64_t tokens = kMostCopies;
    std::int64_t snapshots = 0;
    std::int64_t batch = kMostCopies;
    for (const Row& row : rows) {
      state_bytes = std::max(state_bytes, row.batch * bytes_of(row.state, kState));
      tokens = std::max(tokens, copies(row) * row.batch * row.tokens);
      batch = std::max(batch, copies(row) * row.batch);
      if (row.snapshots) snapshots = std::max(snapshots, row.batch * row.tokens * bytes_of(row.state, kState));
    }
    std::vector<float> normals(1U << 20U);
    cases::Random random(5);
    for (float& value : normals) value = static_cast<float>(0.5 * random.normal());
    state_values_ = normals;
    state_values_bf16_ = bf16_normals(1U << 20U, 0.5);
    const std::vector<std::uint16_t> halves = bf16_normals(1U << 20U, 1.0);
    states_ = DeviceMemory(stream.device, static_cast<std::size_t>(state_bytes));
    snapshots_ = DeviceMemory(stream.device, static_cast<std::size_t>(snapshots));
    x_ = repeated(stream, halves, tokens * kChannels);
    z_ = repeated(stream, halves, tokens * kHv * kHead);
    y_ = DeviceMemory(stream.device, static_cast<std::size_t>(tokens * kHv * kHead) * 2);
    gates_ = repeated(stream, halves, tokens * kHv);
    heads_ = repeated(stream, normals, 2 * kHv);
    g_ = repeated(stream, std::vector<float>(4096, -0.05F), tokens * kHv);
    beta_ = repeated(stream, std::vector<float>(4096, 0.5F), tokens * kHv);
    conv_weight_ = repeated(stream, bf16_normals(1U << 16U, 0.5), kChannels * kTaps);
    conv_state_ = repeated(stream, halves, batch * kChannels * (kTaps - 1));
    norm_weight_ = repeated(stream, normals, kHead);
    replay_counts_ = repeated(stream, std::vector<std::int32_t>(64, 3), batch);
    replay_x_ = repeated(stream, halves, tokens * kChannels);
    replay_a_ = repeated(stream, halves, tokens * kHv);
    replay_b_ = repeated(stream, halves, tokens * kHv);
  }

  static std::int64_t copies(const Row& row) {
    return std::clamp<std::int64_t>(kRotatedBytes / (row.batch * bytes_of(row.state, kState)), 1, kMostCopies);
  }

  // Normal states in the row's dtype, which runs of other rows have overwritten.
  void reset_states(const Row& row) {
    const std::int64_t elements = copies(row) * row.batch * kState;
    if (row.state == DType::kF32) {
      repeat(stream_, state_values_, elements, states_.data());
    } else {
      repeat(stream_, state_values_bf16_, elements, states_.data());
    }
  }

  RecurrentGatedDeltaRuleArgs recurrence(const Row& row, std::int64_t copy) const {
    RecurrentGatedDeltaRuleArgs args;
    const std::int64_t first = copy * row.batch * row.tokens;  // token
    const ConstTensor x = rows_of(x_, row, first, kChannels);
    const auto heads_from = [&](std::int64_t begin, std::int64_t heads) {
      ConstTensor tensor = x;
      tensor.data = static_cast<const std::uint16_t*>(x.data) + begin;
      tensor.rank = 4;
      tensor.shape = {row.batch, row.tokens, heads, kHead};
      tensor.strides = {row.tokens * kChannels, kChannels, kHead, 1};
      return tensor;
    };
    args.q = heads_from(0, kHk);
    args.k = heads_from(kHk * kHead, kHk);
    args.v = heads_from(2 * kHk * kHead, kHv);
    args.g = ConstTensor(static_cast<const float*>(g_.data()) + first * kHv, DType::kF32, {row.batch, row.tokens, kHv},
                         stream_.device);
    args.beta = ConstTensor(static_cast<const float*>(beta_.data()) + first * kHv, DType::kF32,
                            {row.batch, row.tokens, kHv}, stream_.device);
    args.final_state = state(row, copy);
    args.initial_state = args.final_state;
    args.o = output(row, first);
    args.head_map = HeadMap::kGrouped;
    args.qk_norm = QkNorm::kL2;
    if (row.snapshots) {
      args.snapshots = snapshot(row);
      args.final_state = {};
    }
    return args;
  }

  GatedDeltaPrepStepArgs step(const Row& row, std::int64_t copy) const {
    GatedDeltaPrepStepArgs args;
    const std::int64_t first = copy * row.batch * row.tokens;
    args.x = rows_of(x_, row, first, kChannels);
    args.conv_weight = ConstTensor(conv_weight_.data(), DType::kBF16, {kChannels, kTaps}, stream_.device);
    args.conv_state =
        Tensor(static_cast<std::uint16_t*>(conv_state_.data()) + copy * row.batch * kChannels * (kTaps - 1),
               DType::kBF16, {row.batch, kChannels, kTaps - 1}, stream_.device);
    args.gates.a = rows_of(gates_, row, first, kHv);
    args.gates.b = rows_of(gates_, row, first, kHv);
    args.gates.a_log = ConstTensor(heads_.data(), DType::kF32, {kHv}, stream_.device);
    args.gates.dt_bias =
        ConstTensor(static_cast<const float*>(heads_.data()) + kHv, DType::kF32, {kHv}, stream_.device);
    args.state_out = state(row, copy);
    args.state_in = args.state_out;
    if (row.snapshots) args.snapshots = snapshot(row);
    if (row.drafts) set_drafts(row, copy, args);
    args.z = output(z_, row, first);
    args.norm_weight = ConstTensor(norm_weight_.data(), DType::kF32, {kHead}, stream_.device);
    args.y = output(row, first);
    args.head_map = HeadMap::kGrouped;
    args.qk_norm = QkNorm::kL2;
    args.scale = 0.088F;
    return args;
  }

 private:
  void set_drafts(const Row& row, std::int64_t copy, GatedDeltaPrepStepArgs& args) const {
    Row kept = row;
    --kept.tokens;
    const std::int64_t first = copy * row.batch * kept.tokens;
    args.drafts = true;
    args.replay_x = rows_of(replay_x_, kept, first, kChannels);
    args.replay_a = rows_of(replay_a_, kept, first, kHv);
    args.replay_b = rows_of(replay_b_, kept, first, kHv);
    args.replay_counts = ConstTensor(replay_counts_.data(), DType::kI32, {row.batch}, stream_.device);
  }

  static constexpr std::int64_t kRotatedBytes = std::int64_t{320} << 20;
  static constexpr std::int64_t kMostCopies = 128;

  Tensor rows_of(const DeviceMemory& memory, const Row& row, std::int64_t first, std::int64_t width) const {
    return {static_cast<std::uint16_t*>(memory.data()) + first * width,
            DType::kBF16,
            {row.batch, row.tokens, width},
            stream_.device};
  }
  Tensor output(const DeviceMemory& memory, const Row& row, std::int64_t first) const {
    return {static_cast<std::uint16_t*>(memory.data()) + first * kHv * kHead,
            DType::kBF16,
            {row.batch, row.tokens, kHv, kHead},
            stream_.device};
  }
  Tensor output(const Row& row, std::int64_t first) const { return output(y_, row, first); }
  Tensor state(const Row& row, std::int64_t copy) const {
    return {static_cast<char*>(states_.data()) + copy * row.batch * bytes_of(row.state, kState),
            row.state,
            {row.batch, kHv, kHead, kHead},
            stream_.device};
  }
  Tensor snapshot(const Row& row) const {
    return {snapshots_.data(), row.state, {row.batch, row.tokens, kHv, kHead, kHead}, stream_.device};
  }

  Stream stream_;
  std::vector<float> state_values_;
  std::vector<std::uint16_t> state_values_bf16_;
  DeviceMemory states_, snapshots_, x_, z_, y_, gates_, heads_, g_, beta_, conv_weight_, conv_state_, norm_weight_;
  DeviceMemory replay_counts_, replay_x_, replay_a_, replay_b_;
};

// Runs the first copy of a row and compares two of its sequences with the oracle. Empty if they are right.
template <class Args, class MakeOne, class Expect>
std::string check(const Stream& stream, const Row& row, const Args& args, MakeOne make_one, Expect expect) {
  cases::Random random(13);
  HostCopies copies(stream);
  std::vector<cases::Expected> outputs;
  for (const std::int64_t sequence : {random.below(row.batch), row.batch - 1}) {
    // The memory of a batch of one that begins at the sequence.
    Row one_row = row;
    one_row.batch = 1;
    Args one = make_one(one_row, sequence);
    if (row.snapshots) {
      one.snapshots.data = static_cast<char*>(one.snapshots.data) + sequence * row.tokens * bytes_of(row.state, kState);
    }
    if constexpr (requires { one.o; }) fill_with_nan(stream, one.o);
    if constexpr (requires { one.y; }) fill_with_nan(stream, one.y);
    fill_with_nan(stream, one.snapshots);
    for (cases::Expected& output : expect(copies.copy_all(one))) outputs.push_back(std::move(output));
  }
  const DeviceMemory workspace(stream.device, workspace_size(args, stream));
  run(args, workspace.workspace(), stream);
  synchronize(stream);
  copies.refresh();
  return find_error(outputs, arithmetic_of(explain(args, stream)));
}

// Seconds of one run: the median over replays of a graph, of many runs where one takes less than 50 us.
template <class Args>
double measure(const DeviceFunctions& functions, const Stream& stream, const std::vector<Args>& copies) {
  const DeviceMemory workspace(stream.device, workspace_size(copies[0], stream));
  const auto timed = [&](std::size_t launches, int replays) {
    const auto enqueue = [&](const Stream& to) {
      for (std::size_t i = 0; i < launches; ++i) run(copies[i % copies.size()], workspace.workspace(), to);
    };
    std::vector<double> seconds = functions.time(stream.device, enqueue, replays);
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2] / static_cast<double>(launches);
  };
  const double once = timed(copies.size(), 3);
  return once < 50e-6 ? timed(std::max<std::size_t>(100, copies.size()), 11) : timed(copies.size(), 11);
}

}  // namespace

int bench_decode(const BenchOptions& options, const BackendInfo& backend_info) {
  const Stream stream{{backend_info.type, 0}, 0, nullptr};
  const DeviceFunctions& functions = *backend(backend_info.type).device;
  std::vector<Row> rows = all_rows();
  const std::regex pattern(options.selection.case_regex);
  std::erase_if(rows, [&](const Row& row) { return !std::regex_search(row.name(), pattern); });
  if (rows.empty()) throw std::runtime_error("no row of the suite matches '" + options.selection.case_regex + "'");
  const double bandwidth = functions.speed(stream.device).bytes_per_second;
  print("(HK, HV) = ({}, {}), K = V = {}, bf16 activations; a copy reaches {:.2f} TB/s, measured now\n\n", kHk, kHv,
        kHead, bandwidth * 1e-12);
  print("{:<34} {:<10} {:>9} {:>9} {:>8} {:>9} {:>7} {:>8}\n", "shape", "kernel", "us", "floor us", "x floor", "TB/s",
        "share", "bar us");
  std::string csv = "shape,kernel,us,floor_us,bytes_per_second,share_of_copy\n";
  Buffers buffers(stream, rows);
  bool failed = false;
  for (const Row& row : rows) {
    std::vector<RecurrentGatedDeltaRuleArgs> recurrences;
    std::vector<GatedDeltaPrepStepArgs> steps;
    for (std::int64_t i = 0; i < Buffers::copies(row); ++i) {
      if (row.fused) {
        steps.push_back(buffers.step(row, i));
      } else {
        recurrences.push_back(buffers.recurrence(row, i));
      }
    }
    const Explanation explanation = row.fused ? explain(steps[0], stream) : explain(recurrences[0], stream);
    for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
      const KernelVerdict& kernel = explanation.kernels[i];
      const bool wanted = options.all_kernels || static_cast<int>(i) == explanation.chosen;
      if (!kernel.supported || !wanted) continue;
      select_kernel(explanation.operation, kernel.kernel);
      buffers.reset_states(row);
      if (options.check) {
        const auto one_step = [&](const Row& one, std::int64_t sequence) { return buffers.step(one, sequence); };
        const auto one_recurrence = [&](const Row& one, std::int64_t sequence) {
          return buffers.recurrence(one, sequence);
        };
        const std::string error = row.fused ? check(stream, row, steps[0], one_step, expect_step)
                                            : check(stream, row, recurrences[0], one_recurrence, expect_recurrence);
        if (!error.empty()) {
          failed = true;
          select_kernel(explanation.operation, "");
          print("{:<34} {:<10} wrong result, not timed: {}\n", row.name(), kernel.kernel, error);
          continue;
        }
      }
      const double seconds = row.fused ? measure(functions, stream, steps) : measure(functions, stream, recurrences);
      select_kernel(explanation.operation, "");
      const double floor = row.bytes() / bandwidth;
      const double achieved = row.bytes() / seconds;
      print("{:<34} {:<10} {:>9.2f} {:>9.2f} {:>8.2f} {:>9.3f} {:>6.0f}% {:>8}\n", row.name(), kernel.kernel,
            1e6 * seconds, 1e6 * floor, seconds / floor, achieved * 1e-12, 100.0 * achieved / bandwidth,
            row.bar_us > 0.0 ? fmt::format("{:.1f}", row.bar_us) : "");
      std::fflush(stdout);
      csv += fmt::format("{},{},{:.3f},{:.3f},{:.4g},{:.3f}\n", row.name(), kernel.kernel, 1e6 * seconds, 1e6 * floor,
                         achieved, achieved / bandwidth);
    }
  }
  if (!options.csv.empty()) write_text(options.csv, csv);
  return failed ? 1 : 0;
}

}  // namespace thalweg::app
