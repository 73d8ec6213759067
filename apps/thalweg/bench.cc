#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "commands.h"
#include "core/device_functions.h"
#include "core/threads.h"
#include "machine.h"
#include "ops/backends.h"
#include "output_file.h"
#include "progress.h"
#include "streams.h"
#include "thalweg/device_memory.h"

namespace thalweg::app {
namespace {

struct Timing {
  double median_us = 0.0;
  double min_us = 0.0;
  double spread = 0.0;  // (90th - 10th percentile) / median
};

Timing summarize(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {at(0.5), times.front(), (at(0.9) - at(0.1)) / at(0.5)};
}

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
  return summarize(std::move(times));
}

// On a GPU: replays of a graph of runs over several copies of the problem, so that they do not find everything in the
// caches; of at least 100 runs where one takes less than 50 us, so that the clock's step and the graph's launch do not
// count.
Timing measure_on_device(const cases::Case& test, const Stream& stream, const DeviceFunctions& functions, double cost) {
  constexpr double kRotatedBytes = 256e6;
  constexpr double kMostCopies = 8.0;
  const auto copies = static_cast<std::size_t>(std::clamp(kRotatedBytes / std::max(cost, 1.0), 1.0, kMostCopies));
  std::vector<std::unique_ptr<cases::Problem>> problems;
  for (std::size_t i = 0; i < copies; ++i) {
    problems.push_back(test.make(i + 1));
    problems.back()->memory.upload(stream);
  }
  const DeviceMemory workspace(stream.device, problems[0]->workspace_bytes(stream));
  const auto timed = [&](std::size_t runs, int replays) {
    const auto enqueue = [&](const Stream& to) {
      for (std::size_t i = 0; i < runs; ++i) problems[i % copies]->run(workspace.workspace(), to);
    };
    std::vector<double> times = functions.time(stream.device, enqueue, replays);
    for (double& time : times) time *= 1e6 / static_cast<double>(runs);
    return summarize(std::move(times));
  };
  constexpr int kReplays = 21;
  const Timing few = timed(copies, kReplays);
  return few.median_us < 50.0 ? timed((100 + copies - 1) / copies * copies, kReplays) : few;
}

Machine machine_of(const BackendInfo& info, const Stream& stream) {
  if (info.type == DeviceType::kCpu) return measure_machine(stream.threads);
  const DeviceSpeed speed = backend(info.type).device->speed(stream.device);
  return {speed.bytes_per_second, speed.flops_per_second};
}

// The kernels of a backend that a benchmark has not timed, and why: none of its cases reaches them, or another kernel
// was chosen each time.
class UntimedKernels {
 public:
  // Of the operations of the cases; of all operations if none was asked for.
  UntimedKernels(const BackendInfo& info, const std::vector<const cases::Case*>& selected, bool all_operations) {
    for (const OperationInfo& operation : info.operations) {
      const auto is_of = [&](const cases::Case* test) { return test->operation == operation.name; };
      if (!all_operations && std::none_of(selected.begin(), selected.end(), is_of)) continue;
      for (const std::string& kernel : operation.kernels) why_[{operation.name, kernel}] = "no case reaches it";
    }
  }

  void explained(const Explanation& explanation) {
    for (const KernelVerdict& kernel : explanation.kernels) {
      const auto found = why_.find({explanation.operation, kernel.kernel});
      if (found == why_.end() || found->second == kNotChosen) continue;
      found->second = kernel.supported ? std::string(kNotChosen) : "no case reaches it: " + kernel.reason;
    }
  }
  void timed(const Explanation& explanation, const KernelVerdict& kernel) {
    why_.erase({explanation.operation, kernel.kernel});
  }

  void print_all() const {
    if (why_.empty()) return;
    print("\nNot timed:\n");
    for (const auto& [kernel, why] : why_) print("  {}/{}: {}\n", kernel.first, kernel.second, why);
  }

 private:
  static constexpr std::string_view kNotChosen = "another kernel is chosen; --all-kernels times it";
  std::map<std::pair<std::string, std::string>, std::string> why_;  // by operation and kernel
};

// How the line about the machine begins.
std::string resources(const BackendInfo& info, const Stream& stream) {
  if (info.type != DeviceType::kCpu) return "copies";
  return fmt::format("{} threads, {}; reads", thread_count(stream),
                     info.instruction_sets.empty() ? "" : info.instruction_sets.front());
}

}  // namespace

int bench(const BenchOptions& options) {
  const std::vector<const cases::Case*> selected = select_cases(options.selection, true);
  const std::vector<BackendInfo> backends = select_backends(options.selection);
  nlohmann::json rows = nlohmann::json::array();
  bool failed = false;
  for (const BackendInfo& info : backends) {
    if (!info.available) {
      print("{}: skipped, {}\n", device_type_name(info.type), info.reason);
      continue;
    }
    const DeviceFunctions* device = backend(info.type).device;
    if (info.type != DeviceType::kCpu && (device == nullptr || device->speed == nullptr)) {
      print("{}: skipped, nothing here measures the speed of its memory; {}\n", device_type_name(info.type),
            info.note.empty() ? "no times without it" : info.note);
      continue;
    }
    const Stream stream{{info.type, 0}, options.threads, nullptr};
    const Machine machine = machine_of(info, stream);
    print("{}: {} {:.1f} GB/s, {:.0f} GFLOP/s in f32, measured now\n\n", device_type_name(info.type),
          resources(info, stream), machine.bytes_per_second * 1e-9, machine.flops_per_second * 1e-9);
    print("{:<28} {:<44} {:<12} {:>11} {:>11} {:>7} {:>8} {:>9} {:>10} {:>7}\n", "operation", "case", "kernel",
          "median us", "min us", "spread", "GB/s", "GFLOP/s", "floor us", "x floor");
    UntimedKernels untimed(info, selected,
                           options.selection.operations.empty() && options.selection.case_regex.empty());
    Progress progress(selected.size());
    for (const cases::Case* test : selected) {
      progress.step(std::string(test->operation) + " " + test->name);
      if (test->large && info.type == DeviceType::kCpu) continue;
      const std::unique_ptr<cases::Problem> problem = test->make(1);
      const Explanation explanation = problem->explanation(stream);
      untimed.explained(explanation);
      for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
        const KernelVerdict& kernel = explanation.kernels[i];
        const bool wanted = options.all_kernels || static_cast<int>(i) == explanation.chosen;
        if (!kernel.supported || !wanted) continue;
        select_kernel(explanation.operation, kernel.kernel);
        cases::Verdict verdict;
        if (options.check) {
          verdict = cases::verify(*problem, stream);
        } else {
          problem->memory.reset();
          verdict.ok = true;
        }
        Timing timing;
        if (verdict.ok) {
          timing = info.type == DeviceType::kCpu
                       ? measure(*problem, stream, options.seconds)
                       : measure_on_device(*test, stream, *backend(info.type).device, problem->cost.bytes);
        }
        select_kernel(explanation.operation, "");
        progress.clear();
        if (!verdict.ok) {
          failed = true;
          print("{:<28} {:<44} {:<12} wrong result, not timed: {}\n", test->operation, test->name, kernel.kernel,
                verdict.problem);
          continue;
        }
        untimed.timed(explanation, kernel);
        const cases::Cost cost = problem->cost;
        const double floor_us =
            1e6 * std::max(cost.bytes / machine.bytes_per_second, cost.flops / machine.flops_per_second);
        print("{:<28} {:<44} {:<12} {:>11.1f} {:>11.1f} {:>6.0f}% {:>8.2f} {:>9.2f} {:>10.1f} {:>7.2f}\n",
              test->operation, test->name, kernel.kernel, timing.median_us, timing.min_us, 100 * timing.spread,
              cost.bytes / timing.median_us * 1e-3, cost.flops / timing.median_us * 1e-3, floor_us,
              timing.median_us / floor_us);
        std::fflush(stdout);
        rows.push_back({{"op", test->operation},
                        {"case", test->name},
                        {"backend", device_type_name(info.type)},
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
    untimed.print_all();
  }
  if (!options.json.empty()) write_text(options.json, rows.dump(1) + "\n");
  return failed ? 1 : 0;
}

}  // namespace thalweg::app
