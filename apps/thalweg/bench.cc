#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "core/threads.h"
#include "machine.h"
#include "progress.h"

namespace thalweg::app {
namespace {

struct Timing {
  double median_us = 0.0;
  double min_us = 0.0;
  double spread = 0.0;  // (90th - 10th percentile) / median
};

Timing measure(const cases::Problem& problem, const Stream& stream, double seconds) {
  using Clock = std::chrono::steady_clock;
  HostWorkspace scratch;
  const Workspace workspace = scratch.reserve(problem.workspace_bytes(stream));
  std::vector<double> times;
  double total = 0.0;
  constexpr std::size_t kFewest = 7;
  while (times.size() < kFewest || (total < seconds && times.size() < 100'000)) {
    const Clock::time_point start = Clock::now();
    problem.run(workspace, stream);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    total += times.back() * 1e-6;
  }
  times.erase(times.begin());  // warms the caches
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {at(0.5), times.front(), (at(0.9) - at(0.1)) / at(0.5)};
}

}  // namespace

int bench(const BenchOptions& options) {
  const std::vector<const cases::Case*> selected = select_cases(options.selection, true);
  const std::vector<BackendInfo> backends = select_backends(options.selection);
  nlohmann::json rows = nlohmann::json::array();
  bool failed = false;
  for (const BackendInfo& backend : backends) {
    if (!backend.available) {
      fmt::print("{}: skipped, {}\n", device_type_name(backend.type), backend.reason);
      continue;
    }
    const Stream stream{{backend.type, 0}, options.threads, nullptr};
    const Machine machine = measure_machine(options.threads);
    fmt::print("{}: {} threads, {}; reads {:.1f} GB/s, {:.0f} GFLOP/s in f32, measured now\n\n",
               device_type_name(backend.type), thread_count(stream),
               backend.instruction_sets.empty() ? "" : backend.instruction_sets.front(),
               machine.bytes_per_second * 1e-9, machine.flops_per_second * 1e-9);
    fmt::print("{:<28} {:<44} {:<12} {:>11} {:>11} {:>7} {:>8} {:>9} {:>10} {:>7}\n", "operation", "case", "kernel",
               "median us", "min us", "spread", "GB/s", "GFLOP/s", "floor us", "x floor");
    Progress progress(selected.size());
    for (const cases::Case* test : selected) {
      progress.step(std::string(test->operation) + " " + test->name);
      const std::unique_ptr<cases::Problem> problem = test->make(1);
      const Explanation explanation = problem->explanation(stream);
      for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
        const KernelVerdict& kernel = explanation.kernels[i];
        const bool wanted = options.all_kernels || static_cast<int>(i) == explanation.chosen;
        if (!kernel.supported || !wanted) continue;
        select_kernel(explanation.operation, kernel.kernel);
        const cases::Verdict verdict = cases::verify(*problem, stream);
        const Timing timing = verdict.ok ? measure(*problem, stream, options.seconds) : Timing{};
        select_kernel(explanation.operation, "");
        progress.clear();
        if (!verdict.ok) {
          failed = true;
          fmt::print("{:<28} {:<44} {:<12} wrong result, not timed: {}\n", test->operation, test->name, kernel.kernel,
                     verdict.problem);
          continue;
        }
        const cases::Cost cost = problem->cost;
        const double floor_us =
            1e6 * std::max(cost.bytes / machine.bytes_per_second, cost.flops / machine.flops_per_second);
        fmt::print("{:<28} {:<44} {:<12} {:>11.1f} {:>11.1f} {:>6.0f}% {:>8.2f} {:>9.2f} {:>10.1f} {:>7.2f}\n",
                   test->operation, test->name, kernel.kernel, timing.median_us, timing.min_us, 100 * timing.spread,
                   cost.bytes / timing.median_us * 1e-3, cost.flops / timing.median_us * 1e-3, floor_us,
                   timing.median_us / floor_us);
        std::fflush(stdout);
        rows.push_back({{"op", test->operation},
                        {"case", test->name},
                        {"backend", device_type_name(backend.type)},
                        {"kernel", kernel.kernel},
                        {"threads", thread_count(stream)},
                        {"median_us", timing.median_us},
                        {"min_us", timing.min_us},
                        {"spread", timing.spread},
                        {"bytes", cost.bytes},
                        {"flops", cost.flops},
                        {"floor_us", floor_us}});
      }
    }
  }
  if (!options.json.empty()) write_text(options.json, rows.dump(1) + "\n");
  return failed ? 1 : 0;
}

}  // namespace thalweg::app
