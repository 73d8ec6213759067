// `thalweg verify`: every selected case by every kernel on every instruction set, against the float64 oracles.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "output_file.h"
#include "progress.h"
#include "requirements.h"
#include "streams.h"

namespace thalweg::app {
namespace {

// The runs of one operation on one backend.
struct Row {
  std::size_t cases = 0;
  std::size_t runs = 0;
  std::size_t failed = 0;
  std::size_t skipped = 0;
  double worst = 0.0;       // error over bound
  std::string why_skipped;  // reason of the first skipped case
};

using CaseList = std::vector<const cases::Case*>;

// The cases of one operation, whatever their order in the table.
std::vector<CaseList> group_by_operation(const CaseList& selected) {
  std::vector<CaseList> groups;
  for (const cases::Case* test : selected) {
    const auto same = [&](const CaseList& group) { return group.front()->operation == test->operation; };
    const auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) {
      groups.push_back({test});
    } else {
      group->push_back(test);
    }
  }
  return groups;
}

class Verification {
 public:
  Verification(const VerifyOptions& options, std::size_t total) : options_(options), progress_(total) {}

  // One case on every instruction set and by every kernel that supports it.
  void run(const cases::Case& test, const BackendInfo& backend, Row& row) {
    progress_.step(std::string(test.operation) + " " + test.name);
    ++row.cases;
    ++cases_;
    const Stream stream{{backend.type, 0}, options_.threads, nullptr};
    if (!backend.available) {
      skip(row, backend.reason);
      return;
    }
    const std::unique_ptr<cases::Problem> problem = test.make(options_.seed);
    const std::vector<std::string> sets =
        backend.instruction_sets.empty() ? std::vector<std::string>{""} : backend.instruction_sets;
    bool ran = false;
    std::string why = "the backend has no kernel for the operation";
    for (const std::string& set : sets) {
      if (!set.empty()) select_instruction_set(set);
      for (const KernelVerdict& kernel : problem->explanation(stream).kernels) {
        if (!kernel.supported) {
          why = kernel.kernel + " " + kernel.reason;
          continue;
        }
        select_kernel(test.operation, kernel.kernel);
        record(test, backend, set, cases::verify(*problem, stream, options_.runs), row);
        select_kernel(test.operation, "");
        ran = true;
      }
    }
    select_instruction_set("");
    if (!ran) skip(row, why);
  }

  void print(std::string_view operation, const BackendInfo& backend, const Row& row) const {
    progress_.clear();
    app::print("{:<28} {:<6} {:>5} {:>6} {:>7} {:>8} {:>12.3f}\n", operation, device_type_name(backend.type), row.cases,
               row.runs, row.failed, row.skipped, row.worst);
    for (const std::string& failure : failures_) app::print("    {}\n", failure);
    std::fflush(stdout);
  }

  void forget_failures() { failures_.clear(); }

  nlohmann::json json(const std::vector<std::string>& not_run) const {
    return {{"cases", cases_},     {"runs", runs_},      {"failed", failed_},
            {"skipped", skipped_}, {"not_run", not_run}, {"results", results_}};
  }
  std::size_t runs() const { return runs_; }
  std::size_t failed() const { return failed_; }
  std::size_t skipped() const { return skipped_; }

 private:
  void skip(Row& row, const std::string& why) {
    if (row.why_skipped.empty()) row.why_skipped = why;
    ++row.skipped;
    ++skipped_;
  }

  void record(const cases::Case& test, const BackendInfo& backend, const std::string& set,
              const cases::Verdict& verdict, Row& row) {
    ++row.runs;
    ++runs_;
    const std::string kernel = verdict.kernel + (set.empty() ? "" : "/" + set);
    const cases::Comparison* worst = nullptr;
    const auto share = [](const cases::Comparison& c) { return c.error == 0.0 ? 0.0 : c.error / c.bound; };
    for (const cases::Comparison& output : verdict.outputs) {
      if (worst == nullptr || share(output) > share(*worst)) worst = &output;
    }
    if (worst != nullptr) row.worst = std::max(row.worst, share(*worst));
    if (!verdict.ok) {
      ++row.failed;
      ++failed_;
      std::string why = verdict.problem;
      if (worst != nullptr && why.empty()) {
        why = fmt::format("{}: error {:.3g}, bound {:.3g}", worst->output, worst->error, worst->bound);
      }
      if (failures_.size() < 10) failures_.push_back(fmt::format("{} [{}]: {}", test.name, kernel, why));
    }
    results_.push_back({{"op", test.operation},
                        {"case", test.name},
                        {"backend", device_type_name(backend.type)},
                        {"kernel", kernel},
                        {"error", worst != nullptr ? worst->error : 0.0},
                        {"bound", worst != nullptr ? worst->bound : 0.0},
                        {"ok", verdict.ok}});
    if (!verdict.problem.empty()) results_.back()["problem"] = verdict.problem;
  }

  const VerifyOptions& options_;
  Progress progress_;
  std::vector<std::string> failures_;
  nlohmann::json results_ = nlohmann::json::array();
  std::size_t cases_ = 0;
  std::size_t runs_ = 0;
  std::size_t failed_ = 0;
  std::size_t skipped_ = 0;
};

}  // namespace

int verify(const VerifyOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<const cases::Case*> selected = select_cases(options.selection, false);
  const std::vector<BackendInfo> backends = select_backends(options.selection);
  for (const BackendInfo& backend : backends) {
    const std::string_view name = device_type_name(backend.type);
    if (!backend.available) print("{}: skipped, {}\n", name, backend.reason);
    if (backend.available && !backend.note.empty()) print("{}: {}\n", name, backend.note);
  }
  print("seed {}\n\n", options.seed);
  print("{:<28} {:<6} {:>5} {:>6} {:>7} {:>8} {:>12}\n", "operation", "on", "cases", "runs", "failed", "skipped",
        "error/bound");
  Verification verification(options, selected.size() * backends.size());
  Requirements requirements(options.selection);
  for (const CaseList& group : group_by_operation(selected)) {
    for (const BackendInfo& backend : backends) {
      Row row;
      verification.forget_failures();
      for (const cases::Case* test : group) verification.run(*test, backend, row);
      verification.print(group.front()->operation, backend, row);
      requirements.count(group.front()->operation, {row.cases, row.runs, row.why_skipped});
    }
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  print("\n{} cases, {} runs over kernels and instruction sets: {} failed, {} skipped, {:.1f} s\n", selected.size(),
        verification.runs(), verification.failed(), verification.skipped(), elapsed.count());
  const std::vector<std::string> not_run = requirements.unmet("ran");
  for (const std::string& line : not_run) print("NOT RUN  {}\n", line);
  if (!not_run.empty() && !options.allow_skipped) {
    print("What the command line selects must run; --allow-skipped accepts that it does not.\n");
  }
  if (!options.json.empty()) write_text(options.json, verification.json(not_run).dump(1) + "\n");
  const bool incomplete = !not_run.empty() && !options.allow_skipped;
  return verification.failed() > 0 || incomplete ? 1 : 0;
}

}  // namespace thalweg::app
