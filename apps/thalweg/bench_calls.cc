// `thalweg bench --suite calls`: what a call of each operation costs the host before its kernel starts (validation, the
// choice of the kernel, the workspace's size), for the smallest case. On a GPU also the whole call, which enqueues
// only.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "commands.h"
#include "output_file.h"
#include "streams.h"
#include "thalweg/device_memory.h"

namespace thalweg::app {
namespace {

constexpr int kCalls = 2000;
constexpr int kRounds = 9;

struct Row {
  std::string_view operation;
  std::string case_name;
  std::string kernel;
  double planning_us = 0.0;
  double call_us = 0.0;  // 0 on the CPU, where a call includes the work
};

template <class Measure>
double median_us(Measure measure) {
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) times.push_back(1e6 * measure());
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

// Whether a is a smaller case than b. One without arithmetic has no tokens, or is of an operation that only moves data:
// it counts where there is no other.
bool smaller(const cases::Problem& a, const cases::Problem& b) {
  const bool a_computes = a.cost.flops > 0.0;
  const bool b_computes = b.cost.flops > 0.0;
  if (a_computes != b_computes) return a_computes;
  return a.cost.bytes + a.cost.flops < b.cost.bytes + b.cost.flops;
}

Row measure(const cases::Case& smallest, cases::Problem& problem, const Stream& stream) {
  problem.memory.reset();
  if (stream.device.type != DeviceType::kCpu) problem.memory.upload(stream);
  const DeviceMemory workspace(stream.device, std::max<std::size_t>(problem.workspace_bytes(stream), 1));
  const Explanation explanation = problem.explanation(stream);
  Row row{smallest.operation, smallest.name, explanation.kernels[static_cast<std::size_t>(explanation.chosen)].kernel};
  row.planning_us = median_us([&] { return problem.planning_seconds(workspace.workspace(), stream, kCalls); });
  if (stream.device.type == DeviceType::kCpu) return row;
  row.call_us = median_us([&] {
    constexpr int kQueued = 200;  // fewer than fill the stream's queue
    synchronize(stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kQueued; ++i) problem.run(workspace.workspace(), stream);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kQueued;
  });
  synchronize(stream);
  return row;
}

}  // namespace

int bench_calls(const BenchOptions& options, const BackendInfo& backend) {
  const Stream stream{{backend.type, 0}, options.threads, nullptr};
  print("{:<28} {:<72} {:<18} {:>12} {:>12}\n", "operation", "smallest case", "kernel", "planning us",
        backend.type == DeviceType::kCpu ? "" : "call us");
  std::string csv = "operation,case,kernel,planning_us,call_us\n";
  struct Smallest {
    const cases::Case* of = nullptr;
    std::unique_ptr<cases::Problem> problem;
  };
  std::map<std::string_view, Smallest> smallest;
  std::vector<std::string_view> order;
  for (const cases::Case* candidate : select_cases(options.selection, false)) {
    Smallest& best = smallest[candidate->operation];
    if (std::find(order.begin(), order.end(), candidate->operation) == order.end()) {
      order.push_back(candidate->operation);
    }
    std::unique_ptr<cases::Problem> problem = candidate->make(1);
    if (problem->cost.bytes <= 0.0 || (best.problem && !smaller(*problem, *best.problem))) continue;
    if (problem->explanation(stream).chosen < 0) continue;
    best = {candidate, std::move(problem)};
  }
  for (const std::string_view operation : order) {
    Smallest& best = smallest[operation];
    if (!best.problem) continue;
    const Row row = measure(*best.of, *best.problem, stream);
    const std::string call = row.call_us > 0.0 ? fmt::format("{:.2f}", row.call_us) : "";
    print("{:<28} {:<72} {:<18} {:>12.2f} {:>12}\n", row.operation, row.case_name, row.kernel, row.planning_us, call);
    csv += fmt::format("{},{},{},{:.3f},{}\n", row.operation, row.case_name, row.kernel, row.planning_us, call);
  }
  if (!options.csv.empty()) write_text(options.csv, csv);
  return 0;
}

}  // namespace thalweg::app
