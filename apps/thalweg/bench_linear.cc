// `thalweg bench --suite linear`: the dense matrices of a 35B-A3B model in the types of Q4_K_M, bf16 to bf16, for the
// rows of decoding steps and of a prefill, beside the time in which their weights are read.

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
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
#include "thalweg/nn.h"

namespace thalweg::app {
namespace {

struct Shape {
  std::string_view name;
  std::int64_t n;
  std::int64_t k;
  DType type;
};
constexpr Shape kShapes[] = {
    {"qkv", 8192, 2048, DType::kQ5_K},    {"z", 4096, 2048, DType::kQ4_K},       {"gates", 64, 2048, DType::kQ8_0},
    {"out", 2048, 4096, DType::kQ5_K},    {"q_and_k", 8704, 2048, DType::kQ4_K}, {"v", 512, 2048, DType::kQ6_K},
    {"head", 248320, 2048, DType::kQ6_K},
};
constexpr std::int64_t kRows[] = {1, 2, 8, 16, 32, 64, 128, 512, 4096};

// The weights rotate, so that the cache does not hold them.
class Problem {
 public:
  Problem(const Stream& stream, const Shape& shape, std::int64_t rows)
      : stream_(stream),
        weight_bytes_(bytes_of(shape.type, shape.n * shape.k)),
        copies_(std::clamp<std::int64_t>(kRotatedBytes / weight_bytes_, 1, kMostCopies)),
        weights_(repeated_blocks(stream, shape.type, copies_ * weight_bytes_)),
        x_(repeated(stream, normals(), rows * shape.k)),
        y_(stream.device, static_cast<std::size_t>(2 * rows * shape.n)) {
    args_.x = ConstTensor(x_.data(), DType::kBF16, {rows, shape.k}, stream.device);
    args_.weight = ConstTensor(weights_.data(), shape.type, {shape.n, shape.k}, stream.device);
    args_.y = Tensor(y_.data(), DType::kBF16, {rows, shape.n}, stream.device);
    args_.precision = MatmulPrecision::kFast;
  }

  const LinearArgs& args() const { return args_; }
  LinearArgs args(std::int64_t i) const {
    LinearArgs args = args_;
    args.weight.data = static_cast<const char*>(weights_.data()) + i % copies_ * weight_bytes_;
    return args;
  }
  double weight_bytes() const { return static_cast<double>(weight_bytes_); }

  // Compares some outputs of some rows with the oracle. Empty if they are right.
  std::string check() const {
    constexpr std::int64_t kOutputs = 16;
    fill_with_nan(stream_, args_.y);
    const DeviceMemory workspace(stream_.device, std::max<std::size_t>(1, workspace_size(args_, stream_)));
    run(args_, workspace.workspace(), stream_);
    synchronize(stream_);
    cases::Random random(13);
    HostCopies copies(stream_);
    const Arithmetic arithmetic = arithmetic_of(explain(args_, stream_));
    for (int i = 0; i < 4; ++i) {
      const std::int64_t row = random.below(args_.x.dim(0));
      const std::int64_t first = i == 0 ? args_.y.dim(1) - kOutputs : random.below(args_.y.dim(1) - kOutputs + 1);
      LinearArgs sample = args_;
      sample.x = narrow(args_.x, 0, row, 1);
      sample.weight = narrow(args_.weight, 0, first, kOutputs);
      sample.y = column_range(narrow(args_.y, 0, row, 1), first, kOutputs);
      std::string error = find_error(expect_linear(copies.copy_all(sample)), arithmetic);
      if (!error.empty()) return error;
    }
    return {};
  }

 private:
  static constexpr std::int64_t kRotatedBytes = std::int64_t{1} << 29U;
  static constexpr std::int64_t kMostCopies = 64;

  static std::vector<std::uint16_t> normals() {
    cases::Random random(5);
    std::vector<std::uint16_t> values(std::size_t{1} << 20U);
    for (std::uint16_t& value : values) value = f32_to_bf16(static_cast<float>(random.normal()));
    return values;
  }

  Stream stream_;
  std::int64_t weight_bytes_;
  std::int64_t copies_;
  DeviceMemory weights_, x_, y_;
  LinearArgs args_;
};

double seconds_of(const Stream& stream, const Problem& problem) {
  const int runs = problem.args().x.dim(0) > 128 ? 8 : 64;
  const DeviceMemory workspace(stream.device, std::max<std::size_t>(1, workspace_size(problem.args(), stream)));
  std::vector<double> times = backend(stream.device.type)
                                  .device->time(
                                      stream.device,
                                      [&](const Stream& to) {
                                        for (int i = 0; i < runs; ++i) run(problem.args(i), workspace.workspace(), to);
                                      },
                                      9);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] / runs;
}

}  // namespace

int bench_linear(const BenchOptions& options, const BackendInfo& info) {
  const Stream stream{{info.type, 0}, 0, nullptr};
  const DeviceSpeed speed = backend(info.type).device->speed(stream.device);
  print("{:<8} {:>7} {:>6} {:<6} {:>6} {:<14} {:>10} {:>10} {:>8}\n", "matrix", "N", "K", "type", "rows", "kernel",
        "us", "floor us", "x floor");
  std::string csv = "matrix,n,k,type,rows,kernel,us,floor_us\n";
  const std::regex pattern(options.selection.case_regex);
  bool failed = false;
  for (const Shape& shape : kShapes) {
    for (const std::int64_t rows : kRows) {
      if (!std::regex_search(fmt::format("{}_M{}", shape.name, rows), pattern)) continue;
      const Problem problem(stream, shape, rows);
      const double flops = 2.0 * static_cast<double>(rows * shape.n * shape.k);
      const double moved = problem.weight_bytes() + 2.0 * static_cast<double>(rows * (shape.n + shape.k));
      const double floor = 1e6 * std::max(moved / speed.bytes_per_second, flops / speed.matrix_flops_per_second);
      const Explanation explanation = explain(problem.args(), stream);
      for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
        const KernelVerdict& kernel = explanation.kernels[i];
        if (!kernel.supported || (!options.all_kernels && static_cast<int>(i) != explanation.chosen)) continue;
        if (kernel.kernel == "exact") continue;
        select_kernel(explanation.operation, kernel.kernel);
        const std::string error = options.check ? problem.check() : "";
        const double us = error.empty() ? 1e6 * seconds_of(stream, problem) : 0.0;
        select_kernel(explanation.operation, "");
        const std::string where =
            fmt::format("{:<8} {:>7} {:>6} {:<6} {:>6} {:<14}", shape.name, shape.n, shape.k, dtype_name(shape.type),
                        rows, std::string(kernel.kernel) + (static_cast<int>(i) == explanation.chosen ? " *" : ""));
        if (!error.empty()) {
          failed = true;
          print("{} wrong result, not timed: {}\n", where, error);
          continue;
        }
        print("{} {:>10.2f} {:>10.2f} {:>8.2f}\n", where, us, floor, us / floor);
        std::fflush(stdout);
        csv += fmt::format("{},{},{},{},{},{},{:.3f},{:.3f}\n", shape.name, shape.n, shape.k, dtype_name(shape.type),
                           rows, kernel.kernel, us, floor);
      }
    }
  }
  if (!options.csv.empty()) write_text(options.csv, csv);
  return failed ? 1 : 0;
}

}  // namespace thalweg::app
