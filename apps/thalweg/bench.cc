#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "commands.h"
#include "core/device_functions.h"
#include "core/threads.h"
#include "machine.h"
#include "ops/backends.h"
#include "output_file.h"
#include "progress.h"
#include "requirements.h"
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
  // Of the operations of the cases; of all operations if none was named.
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
std::string resources(const BackendInfo& info, const Stream& stream, const std::string& instruction_set) {
  if (info.type != DeviceType::kCpu) return "copies";
  const std::string best = info.instruction_sets.empty() ? "" : info.instruction_sets.front();
  return fmt::format("{} threads, {}; reads", thread_count(stream), instruction_set.empty() ? best : instruction_set);
}

// Why nothing is timed on the backend; empty if it can be.
std::string why_skipped(const BackendInfo& info) {
  if (!info.available) return info.reason;
  const DeviceFunctions* device = backend(info.type).device;
  if (info.type == DeviceType::kCpu || (device != nullptr && device->speed != nullptr)) return {};
  return "nothing here measures the speed of its memory; " + (info.note.empty() ? "no times without it" : info.note);
}

// The cases on one backend.
class BackendBench {
 public:
  BackendBench(const BenchOptions& options, const BackendInfo& info)
      : options_(options), info_(info), stream_{{info.type, 0}, options.threads, nullptr} {}

  // Prints a table, adds its rows to `rows` and counts what was timed. Whether every result was right.
  bool run(const std::vector<const cases::Case*>& selected, nlohmann::json& rows, Requirements& requirements) {
    machine_ = machine_of(info_, stream_);
    print("{}: {} {:.1f} GB/s, {:.0f} GFLOP/s in f32, measured now\n\n", device_type_name(info_.type),
          resources(info_, stream_, options_.instruction_set), machine_.bytes_per_second * 1e-9,
          machine_.flops_per_second * 1e-9);
    print("{:<28} {:<44} {:<12} {:>11} {:>11} {:>7} {:>8} {:>9} {:>10} {:>7}\n", "operation", "case", "kernel",
          "median us", "min us", "spread", "GB/s", "GFLOP/s", "floor us", "x floor");
    UntimedKernels untimed(info_, selected,
                           options_.selection.operations.empty() && options_.selection.case_regex.empty());
    Progress progress(selected.size());
    bool ok = true;
    for (const cases::Case* test : selected) {
      progress.step(std::string(test->operation) + " " + test->name);
      if (test->large && info_.type == DeviceType::kCpu) {
        requirements.count(test->operation, {1, 0, test->name + " is too large for a CPU"});
        continue;
      }
      const std::unique_ptr<cases::Problem> problem = test->make(1);
      const Explanation explanation = problem->explanation(stream_);
      untimed.explained(explanation);
      CaseCounts counts{1, 0, "the backend has no kernel for the operation"};
      for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
        const KernelVerdict& kernel = explanation.kernels[i];
        const bool wanted = options_.all_kernels || static_cast<int>(i) == explanation.chosen;
        if (!kernel.supported) counts.why_skipped = kernel.kernel + " " + kernel.reason;
        if (!kernel.supported || !wanted) continue;
        ++counts.runs;
        const std::optional<Timing> timing = check_and_time(*test, *problem, kernel.kernel, progress);
        if (timing) {
          untimed.timed(explanation, kernel);
          rows.push_back(row(*test, kernel.kernel, *timing, problem->cost));
        }
        ok = ok && timing;
      }
      requirements.count(test->operation, counts);
    }
    untimed.print_all();
    return ok;
  }

 private:
  // None if the kernel's result is wrong.
  std::optional<Timing> check_and_time(const cases::Case& test, cases::Problem& problem, const std::string& kernel,
                                       Progress& progress) const {
    select_kernel(test.operation, kernel);
    cases::Verdict verdict;
    if (options_.check) {
      verdict = cases::verify(problem, stream_);
    } else {
      problem.memory.reset();
      verdict.ok = true;
    }
    std::optional<Timing> timing;
    if (verdict.ok) {
      timing = info_.type == DeviceType::kCpu
                   ? measure(problem, stream_, options_.seconds)
                   : measure_on_device(test, stream_, *backend(info_.type).device, problem.cost.bytes);
    }
    select_kernel(test.operation, "");
    progress.clear();
    if (!verdict.ok) {
      print("{:<28} {:<44} {:<12} wrong result, not timed: {}\n", test.operation, test.name, kernel, verdict.problem);
    }
    return timing;
  }

  // Prints a row and returns what of it goes to a file.
  nlohmann::json row(const cases::Case& test, const std::string& kernel, const Timing& timing,
                     const cases::Cost& cost) const {
    const double floor_us =
        1e6 * std::max(cost.bytes / machine_.bytes_per_second, cost.flops / machine_.flops_per_second);
    print("{:<28} {:<44} {:<12} {:>11.1f} {:>11.1f} {:>6.0f}% {:>8.2f} {:>9.2f} {:>10.1f} {:>7.2f}\n", test.operation,
          test.name, kernel, timing.median_us, timing.min_us, 100 * timing.spread, cost.bytes / timing.median_us * 1e-3,
          cost.flops / timing.median_us * 1e-3, floor_us, timing.median_us / floor_us);
    std::fflush(stdout);
    return {{"op", test.operation},
            {"case", test.name},
            {"backend", device_type_name(info_.type)},
            {"kernel", kernel},
            {"threads", thread_count(stream_)},
            {"median_us", timing.median_us},
            {"min_us", timing.min_us},
            {"spread", timing.spread},
            {"bytes", cost.bytes},
            {"flops", cost.flops},
            {"floor_us", floor_us}};
  }

  const BenchOptions& options_;
  const BackendInfo& info_;
  Stream stream_;
  Machine machine_;
};

}  // namespace

int bench(const BenchOptions& options) {
  const std::vector<const cases::Case*> selected = select_cases(options.selection, true);
  nlohmann::json rows = nlohmann::json::array();
  Requirements requirements(options.selection);
  bool ok = true;
  for (const BackendInfo& info : select_backends(options.selection)) {
    if (const std::string why = why_skipped(info); !why.empty()) {
      print("{}: skipped, {}\n", device_type_name(info.type), why);
      for (const cases::Case* test : selected) requirements.count(test->operation, {1, 0, why});
    } else if (!BackendBench(options, info).run(selected, rows, requirements)) {
      ok = false;
    }
  }
  const std::vector<std::string> not_timed = requirements.unmet("was timed");
  if (!not_timed.empty()) print("\n");
  for (const std::string& line : not_timed) print("NOT TIMED  {}\n", line);
  if (!not_timed.empty() && !options.allow_skipped) {
    print("What the command line selects must be timed; --allow-skipped accepts that it is not.\n");
    ok = false;
  }
  if (!options.json.empty()) write_text(options.json, rows.dump(1) + "\n");
  return ok ? 0 : 1;
}

}  // namespace thalweg::app
