// `thalweg bench --suite moe`: the whole mixture-of-experts block at the shape of the 35B-A3B model, over numbers of
// tokens, beside what its dense parts cost as operations of their own.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <regex>

#include "bench_check.h"
#include "cases/random.h"
#include "commands.h"
#include "core/device_functions.h"
#include "device_fill.h"
#include "ops/backends.h"
#include "output_file.h"
#include "streams.h"
#include "thalweg/moe.h"

namespace thalweg::app {
namespace {

constexpr std::int64_t kExperts = 256;
constexpr std::int64_t kSlots = 8;
constexpr std::int64_t kHidden = 2048;
constexpr std::int64_t kInner = 512;
// Formats of gate and up, of down, and of the shared expert: the second is that of half of the layers of Q4_K_M.
struct Mix {
  DType gate_up, down, shared;
  std::string name() const {
    return fmt::format("{}+{}+{}", dtype_name(gate_up), dtype_name(down), dtype_name(shared));
  }
};
constexpr Mix kMixes[] = {{DType::kQ4_K, DType::kQ4_K, DType::kQ8_0}, {DType::kQ4_K, DType::kQ6_K, DType::kQ6_K}};

// Bars of the three expert matmuls by tokens, of which the block may take 1.15 times the sum and its dense parts.
struct Row {
  std::int64_t tokens;
  double matmuls_us;
};
constexpr Row kRows[] = {{1, 18}, {8, 36}, {32, 150}, {64, 190}, {128, 225}, {512, 310}, {2048, 600}, {8192, 1400}};
constexpr double kAllowance = 1.15;

class Tensors {
 public:
  explicit Tensors(const Stream& stream) : stream_(stream) {}

  ConstTensor weights(DType type, std::initializer_list<std::int64_t> shape) {
    ConstTensor tensor(nullptr, type, shape, stream_.device);
    memory_.push_back(repeated_blocks(stream_, type, bytes_of(type, tensor.size())));
    tensor.data = memory_.back().data();
    return tensor;
  }
  ConstTensor normals(std::initializer_list<std::int64_t> shape, double scale) {
    std::vector<float> pool(std::size_t{1} << 20U);
    for (float& value : pool) value = static_cast<float>(scale * random_.normal());
    ConstTensor tensor(nullptr, DType::kF32, shape, stream_.device);
    memory_.push_back(repeated(stream_, pool, tensor.size()));
    tensor.data = memory_.back().data();
    return tensor;
  }
  Tensor output(DType type, std::initializer_list<std::int64_t> shape) {
    Tensor tensor(nullptr, type, shape, stream_.device);
    memory_.emplace_back(stream_.device, static_cast<std::size_t>(bytes_of(type, tensor.size())));
    tensor.data = memory_.back().data();
    return tensor;
  }

 private:
  Stream stream_;
  cases::Random random_{5};
  std::vector<DeviceMemory> memory_;
};

// Seconds of one run, the median over replays of a graph; launch(i, stream) is the i-th.
template <class Launch>
double seconds(const Stream& stream, Launch launch) {
  constexpr int kRuns = 24;
  std::vector<double> times = backend(stream.device.type)
                                  .device->time(
                                      stream.device,
                                      [&](const Stream& to) {
                                        for (int i = 0; i < kRuns; ++i) launch(i, to);
                                      },
                                      7);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] / kRuns;
}

// One after the other.
template <class... Args>
double seconds_of(const Stream& stream, const Args&... args) {
  const DeviceMemory workspace(stream.device, std::max({std::size_t{1}, workspace_size(args, stream)...}));
  return seconds(stream, [&](int, const Stream& to) { (run(args, workspace.workspace(), to), ...); });
}

// With other tokens every time, so that few tokens' experts are not those that the cache holds from the run before.
constexpr int kDraws = 8;
double seconds_of_draws(const Stream& stream, MoeFfnArgs args, const ConstTensor& draws) {
  const DeviceMemory workspace(stream.device, std::max<std::size_t>(1, workspace_size(args, stream)));
  return seconds(stream, [&](int i, const Stream& to) {
    args.x.data = draws.row(i % kDraws);
    run(args, workspace.workspace(), to);
  });
}

// The experts of one token by float64 logits; empty if the last of them is nearly as likely as the next one, which f32
// may then prefer.
std::vector<std::int64_t> experts_of(const float* x, const std::vector<float>& router) {
  std::vector<double> logits(kExperts);
  for (std::size_t e = 0; e < logits.size(); ++e) {
    logits[e] = std::inner_product(x, x + kHidden, router.data() + e * kHidden, 0.0);
  }
  std::vector<std::int64_t> order(kExperts);
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int64_t e) { return logits[static_cast<std::size_t>(e)]; };
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return logit(a) > logit(b); });
  constexpr double kClear = 0.02;
  if (logit(order[kSlots - 1]) - logit(order[kSlots]) < kClear) return {};
  order.resize(kSlots);
  std::sort(order.begin(), order.end());  // ties, if any, go to the lower id
  return order;
}

// Runs the block and compares some tokens with the oracle, each of which gets the experts that it uses as a block of
// its own. Empty if they are right.
std::string check(const Stream& stream, MoeFfnArgs args, const ConstTensor& draws) {
  constexpr int kTokens = 2;
  cases::Random random(13);
  std::vector<float> router(static_cast<std::size_t>(kExperts * kHidden));
  copy_to_host(stream, router.data(), args.router.data, router.size() * sizeof(float));
  HostCopies copies(stream);
  MoeFfnArgs shared = args;
  shared.shared_gate = copies.copy(args.shared_gate);
  shared.shared_up = copies.copy(args.shared_up);
  shared.shared_down = copies.copy(args.shared_down);
  shared.shared_router = copies.copy(args.shared_router);
  const DeviceMemory workspace(stream.device, std::max<std::size_t>(1, workspace_size(args, stream)));
  const Arithmetic arithmetic = arithmetic_of(explain(args, stream));
  int checked = 0;
  for (int draw = 0; draw < kDraws && checked < kTokens; ++draw) {
    args.x.data = draws.row(draw);
    fill_with_nan(stream, args.y);
    run(args, workspace.workspace(), stream);
    synchronize(stream);
    const std::int64_t token = draw == 0 ? args.x.dim(0) - 1 : random.below(args.x.dim(0));
    std::vector<float> x(kHidden);
    std::vector<float> y(kHidden);
    copy_to_host(stream, x.data(), args.x.row(token), x.size() * sizeof(float));
    copy_to_host(stream, y.data(), args.y.row(token), y.size() * sizeof(float));
    const std::vector<std::int64_t> experts = experts_of(x.data(), router);
    if (experts.empty()) continue;
    ++checked;
    // The routing weights of the chosen experts are renormalized, so that the others do not count.
    std::vector<float> chosen_router;
    const auto gather = [&](const ConstTensor& weight, std::vector<unsigned char>& memory) {
      const std::int64_t bytes = bytes_of(weight.dtype, weight.dim(1) * weight.dim(2));
      memory.resize(static_cast<std::size_t>(kSlots * bytes));
      for (std::int64_t s = 0; s < kSlots; ++s) {
        copy_to_host(stream, memory.data() + s * bytes, weight.row(experts[static_cast<std::size_t>(s)]),
                     static_cast<std::size_t>(bytes));
      }
      return ConstTensor(memory.data(), weight.dtype, {kSlots, weight.dim(1), weight.dim(2)}, kCpu);
    };
    for (const std::int64_t e : experts) {
      const auto row = router.begin() + e * kHidden;
      chosen_router.insert(chosen_router.end(), row, row + kHidden);
    }
    std::vector<unsigned char> gate;
    std::vector<unsigned char> up;
    std::vector<unsigned char> down;
    MoeFfnArgs sample = shared;
    sample.x = ConstTensor(x.data(), DType::kF32, {1, kHidden}, kCpu);
    sample.router = ConstTensor(chosen_router.data(), DType::kF32, {kSlots, kHidden}, kCpu);
    sample.gate = gather(args.gate, gate);
    sample.up = gather(args.up, up);
    sample.down = gather(args.down, down);
    sample.y = Tensor(y.data(), DType::kF32, {1, kHidden}, kCpu);
    const std::string error = find_error(expect_moe(sample), arithmetic);
    if (!error.empty()) return fmt::format("token {}: {}", token, error);
  }
  return checked > 0 ? "" : "no token whose experts are clear, to compare";
}

LinearArgs linear_of(const ConstTensor& x, const ConstTensor& weight, const Tensor& y) {
  LinearArgs args;
  args.x = x;
  args.weight = weight;
  args.y = y;
  args.precision = MatmulPrecision::kFast;
  return args;
}

// Appends to `csv`; false if a result is wrong.
bool bench_mix(const BenchOptions& options, const Stream& stream, const Mix& mix, std::string& csv) {
  Tensors weights(stream);
  MoeFfnArgs args;
  args.router = weights.normals({kExperts, kHidden}, 0.05);
  args.gate = weights.weights(mix.gate_up, {kExperts, kInner, kHidden});
  args.up = weights.weights(mix.gate_up, {kExperts, kInner, kHidden});
  args.down = weights.weights(mix.down, {kExperts, kHidden, kInner});
  args.shared_gate = weights.weights(mix.shared, {kInner, kHidden});
  args.shared_up = weights.weights(mix.shared, {kInner, kHidden});
  args.shared_down = weights.weights(mix.shared, {kHidden, kInner});
  args.shared_router = weights.normals({kHidden}, 0.05);
  args.top_k = kSlots;
  args.precision = MatmulPrecision::kFast;
  print("{}\n", mix.name());
  print("{:<8} {:<8} {:>10} {:>10} {:>10} {:>8} {:>12}\n", "tokens", "kernel", "us", "dense us", "bar us", "x bar",
        "workspace MB");
  const std::regex pattern(options.selection.case_regex);
  bool failed = false;
  for (const Row& row : kRows) {
    if (!std::regex_search(fmt::format("M{}", row.tokens), pattern)) continue;
    Tensors tensors(stream);
    const ConstTensor draws = tensors.normals({kDraws, row.tokens, kHidden}, 1.0);
    args.x = ConstTensor(draws.data, DType::kF32, {row.tokens, kHidden}, stream.device);
    args.y = tensors.output(DType::kF32, {row.tokens, kHidden});
    const Tensor gate = tensors.output(DType::kF32, {row.tokens, kInner});
    const Tensor up = tensors.output(DType::kF32, {row.tokens, kInner});
    RouteTopKArgs route;
    route.router_logits = tensors.normals({row.tokens, kExperts}, 1.0);
    route.expert_ids = tensors.output(DType::kI32, {row.tokens, kSlots});
    route.expert_weights = tensors.output(DType::kF32, {row.tokens, kSlots});
    SwigluArgs activate;
    activate.gate = gate;
    activate.up = up;
    activate.y = gate;
    const double dense =
        seconds_of(stream, route, linear_of(args.x, args.shared_gate, gate), linear_of(args.x, args.shared_up, up),
                   activate, linear_of(gate, args.shared_down, args.y));
    const double bar = kAllowance * row.matmuls_us + 1e6 * dense;
    const Explanation explanation = explain(args, stream);
    for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
      const KernelVerdict& kernel = explanation.kernels[i];
      if (!kernel.supported || (!options.all_kernels && static_cast<int>(i) != explanation.chosen)) continue;
      select_kernel(explanation.operation, kernel.kernel);
      const std::string error = options.check ? check(stream, args, draws) : "";
      if (!error.empty()) {
        failed = true;
        select_kernel(explanation.operation, "");
        print("{:<8} {:<8} wrong result, not timed: {}\n", row.tokens, kernel.kernel, error);
        continue;
      }
      const double us = 1e6 * seconds_of_draws(stream, args, draws);
      print("{:<8} {:<8} {:>10.1f} {:>10.1f} {:>10.1f} {:>8.2f} {:>12.1f}\n", row.tokens, kernel.kernel, us,
            1e6 * dense, bar, us / bar, static_cast<double>(workspace_size(args, stream)) * 1e-6);
      std::fflush(stdout);
      csv += fmt::format("{},{},{},{:.3f},{:.3f},{:.3f},{}\n", mix.name(), row.tokens, kernel.kernel, us, 1e6 * dense,
                         bar, workspace_size(args, stream));
      select_kernel(explanation.operation, "");
    }
  }
  print("\n");
  return !failed;
}

}  // namespace

int bench_moe(const BenchOptions& options, const BackendInfo& info) {
  const Stream stream{{info.type, 0}, 0, nullptr};
  print("moe_ffn, E {}, top-{}, hidden {}, inner {}, a shared expert of the same size\n", kExperts, kSlots, kHidden,
        kInner);
  print(
      "dense: the shared expert and the routing as operations of their own; bar: {} x (the matmuls' bars) + dense\n\n",
      kAllowance);
  std::string csv = "mix,tokens,kernel,us,dense_us,bar_us,workspace_bytes\n";
  bool right = true;
  for (const Mix& mix : kMixes) right = bench_mix(options, stream, mix, csv) && right;
  if (!options.csv.empty()) write_text(options.csv, csv);
  return right ? 0 : 1;
}

}  // namespace thalweg::app
