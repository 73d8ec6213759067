#pragma once

// One table of cases: the tests, `thalweg verify` and `thalweg bench` run the same problems. A case makes a problem:
// arguments in guarded memory, an oracle for the outputs, and the least possible cost.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cases/memory.h"
#include "cases/random.h"
#include "cases/tensors.h"
#include "ops/plan_call.h"
#include "reference/array.h"
#include "thalweg/operation.h"

namespace thalweg::cases {

// The largest error of a result, relative to the norm of the exact result.
struct Bound {
  double l2 = 0.0;
  double max = 0.0;
};

// The f32 class: 2e-6 sqrt(reduction), plus 2^-23 max|G| where gates are summed over a chunk. The largest single error
// may be four times that, relative to the largest value.
Bound f32_bound(double reduction, double largest_gate = 0.0);

// The expected values of one output of a problem.
struct Expected {
  std::string name;
  ConstTensor actual;
  std::vector<double> exact;  // row-major, or only at `indices`
  Bound bound;
  std::vector<std::int64_t> indices = {};  // empty: all of it
  // For kernels with Arithmetic::k16Bit and k8Bit, of the operations that have such kernels.
  Bound bound_16bit = {};
  Bound bound_8bit = {};
};

// f32 class plus twice the error of the plain same-precision implementation.
// `bound_16bit` and `bound_8bit` replace the class for kernels of such arithmetic.
Expected expect(std::string name, const ConstTensor& actual, const reference::Array& exact,
                const reference::Array& rounded, Bound f32, Bound bound_16bit = {}, Bound bound_8bit = {});
// The distance of one result from another, in the measures of a bound.
Bound distance(const reference::Array& exact, const reference::Array& other);
// No error allowed: integers, bits.
Expected expect_equal(std::string name, const ConstTensor& actual, const reference::Array& exact);

struct Comparison {
  std::string output;
  double error = 0.0;  // the measure (l2 or max) that is closer to its bound
  double bound = 0.0;
  bool ok = false;
};
Comparison compare(const Expected& expected, Arithmetic arithmetic = Arithmetic::kF32);

// Least work of the operation: bytes that must move, multiplications and additions.
struct Cost {
  double bytes = 0.0;
  double flops = 0.0;
};

class Problem {
 public:
  Problem() = default;
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
  virtual ~Problem() = default;

  virtual std::size_t workspace_bytes(const Stream& stream) const = 0;
  virtual Explanation explanation(const Stream& stream) const = 0;
  virtual void run(Workspace workspace, const Stream& stream) const = 0;
  // Seconds of a call before its kernel starts (validation and planning), the mean of `calls`; 0 where the problem is
  // not one call.
  virtual double planning_seconds(Workspace, const Stream&, int) const { return 0.0; }

  // Computed at the first call, before which no run may have written to memory since its last reset.
  const std::vector<Expected>& expected() {
    if (!known_) {
      expected_ = oracle();
      known_ = true;
    }
    return expected_;
  }

  Memory memory;
  Cost cost;

 protected:
  virtual std::vector<Expected> oracle() const = 0;

 private:
  bool known_ = false;
  std::vector<Expected> expected_;
};

template <class Args>
class OperationProblem final : public Problem {
 public:
  std::size_t workspace_bytes(const Stream& stream) const override { return workspace_size(args_on(stream), stream); }
  Explanation explanation(const Stream& stream) const override { return explain(args_on(stream), stream); }
  void run(Workspace workspace, const Stream& stream) const override {
    thalweg::run(args_on(stream), workspace, stream);
  }
  double planning_seconds(Workspace workspace, const Stream& stream, int calls) const override {
    const Args there = args_on(stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) plan_call(there, workspace, stream);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
  }

  Args args;
  std::function<std::vector<Expected>(const Args&)> find_expected;

 protected:
  std::vector<Expected> oracle() const override { return find_expected(args); }

 private:
  // The same with the copies on the stream's device instead of the tensors; null addresses before an upload.
  Args args_on(const Stream& stream) const {
    Args there = args;
    if (stream.device.type == DeviceType::kCpu) return there;
    visit_tensors(there, [&](auto& tensor) {
      if (tensor.defined()) tensor = memory.on_device(tensor, stream.device);
    });
    return there;
  }
};

struct Case {
  std::string_view operation;
  std::string name;
  std::function<std::unique_ptr<Problem>(std::uint64_t seed)> make;
  bool verify = true;  // false: only for the benchmark
  bool bench = false;
  bool large = false;  // a benchmark for devices: it would keep the CPU busy for minutes
};

// `fill(problem, random)` sets args, find_expected and cost.
template <class Args, class Fill>
Case make_case(std::string name, Fill fill) {
  auto make = [name, fill](std::uint64_t seed) -> std::unique_ptr<Problem> {
    auto problem = std::make_unique<OperationProblem<Args>>();
    Random random(seed ^ hash(std::string(Args::kName) + "/" + name));
    fill(*problem, random);
    return problem;
  };
  return {Args::kName, std::move(name), std::move(make)};
}

// A case of realistic sizes that is timed, and verified only before it is timed.
Case for_bench(Case timed);

// Every case of every operation, in the operations' order.
const std::vector<Case>& all_cases();

// Resets memory and runs the problem once. Returns a description of forbidden writes, empty if there were none; throws
// what the run throws.
std::string run_once(Problem& problem, const Stream& stream);

// The results of a problem's runs.
struct Verdict {
  std::string kernel;
  std::vector<Comparison> outputs;
  std::string problem;  // an exception, a forbidden write, or bits that differ between runs
  bool ok = false;
};
// The first of `runs` runs is compared with the oracle, the others with the first, bit for bit.
Verdict verify(Problem& problem, const Stream& stream, int runs = 1);

// The cases of each family of operations.
void add_gated_delta_stage_cases(std::vector<Case>& cases);
void add_gated_delta_rule_cases(std::vector<Case>& cases);
void add_gated_delta_prep_step_cases(std::vector<Case>& cases);
void add_nn_cases(std::vector<Case>& cases);
void add_moe_cases(std::vector<Case>& cases);
void add_sampling_cases(std::vector<Case>& cases);
void add_quant_cases(std::vector<Case>& cases);

}  // namespace thalweg::cases
