#include "cases/case.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

namespace thalweg::cases {
namespace {

struct Norms {
  double l2 = 0.0;
  double max = 0.0;
};

// Relative to the norms of `exact`; where those are zero, absolute.
Norms relative_error(const std::vector<double>& exact, const std::vector<double>& actual) {
  Norms error;
  Norms size;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = std::abs(actual[i] - exact[i]);
    if (!(difference <= std::numeric_limits<double>::max())) {  // NaN or infinite
      error.l2 = error.max = std::numeric_limits<double>::infinity();
      return error;
    }
    error.l2 += difference * difference;
    error.max = std::max(error.max, difference);
    size.l2 += exact[i] * exact[i];
    size.max = std::max(size.max, std::abs(exact[i]));
  }
  error.l2 = std::sqrt(error.l2);
  size.l2 = std::sqrt(size.l2);
  if (size.max > 0.0) {
    error.l2 /= size.l2;
    error.max /= size.max;
  }
  return error;
}

}  // namespace

Bound f32_bound(double reduction, double largest_gate) {
  const double l2 = 2e-6 * std::sqrt(std::max(reduction, 1.0)) + 0x1p-23 * largest_gate;
  return {l2, 4.0 * l2};
}

Expected expect(std::string name, const ConstTensor& actual, const reference::Array& exact,
                const reference::Array& rounded, Bound f32, Bound bound_16bit, Bound bound_8bit) {
  const Norms plain = relative_error(exact.values, rounded.values);
  const auto with_rounding = [&](Bound bound) { return Bound{bound.l2 + 2.0 * plain.l2, bound.max + 2.0 * plain.max}; };
  return {std::move(name),          actual, exact.values, with_rounding(f32), {}, with_rounding(bound_16bit),
          with_rounding(bound_8bit)};
}

Bound distance(const reference::Array& exact, const reference::Array& other) {
  const Norms norms = relative_error(exact.values, other.values);
  return {norms.l2, norms.max};
}

Expected expect_equal(std::string name, const ConstTensor& actual, const reference::Array& exact) {
  return {std::move(name), actual, exact.values, {0.0, 0.0}, {}};
}

Comparison compare(const Expected& expected, Arithmetic arithmetic) {
  const Bound bound = arithmetic == Arithmetic::k16Bit  ? expected.bound_16bit
                      : arithmetic == Arithmetic::k8Bit ? expected.bound_8bit
                                                        : expected.bound;
  std::vector<double> actual = reference::read(expected.actual).values;
  if (!expected.indices.empty()) {
    std::vector<double> sample;
    for (const std::int64_t index : expected.indices) sample.push_back(actual[static_cast<std::size_t>(index)]);
    actual = std::move(sample);
  }
  if (actual.size() != expected.exact.size()) {
    return {expected.name, std::numeric_limits<double>::infinity(), bound.l2, false};
  }
  const Norms error = relative_error(expected.exact, actual);
  const auto share = [](double e, double b) { return e == 0.0 ? 0.0 : e / b; };
  const bool l2_is_worse = share(error.l2, bound.l2) >= share(error.max, bound.max);
  return {expected.name, l2_is_worse ? error.l2 : error.max, l2_is_worse ? bound.l2 : bound.max,
          error.l2 <= bound.l2 && error.max <= bound.max};
}

std::string run_once(Problem& problem, const Stream& stream) {
  problem.memory.reset();
  // A buffer of exactly the required size, filled with NaN, so that uninitialized reads show.
  const std::size_t bytes = problem.workspace_bytes(stream);
  Memory scratch;
  const Tensor workspace = scratch.output(DType::kF32, {static_cast<std::int64_t>((bytes + 3) / 4)});
  if (stream.device.type == DeviceType::kCpu) {
    problem.run({workspace.data, bytes}, stream);
  } else {
    problem.memory.upload(stream);
    scratch.upload(stream);
    // Planned without memory above; the plan that runs must be the same.
    if (problem.workspace_bytes(stream) != bytes) return "the workspace's size depends on addresses";
    problem.run({scratch.on_device(workspace, stream.device).data, bytes}, stream);
    synchronize(stream);
    problem.memory.download(stream);
    scratch.download(stream);
  }
  const std::string wrong = problem.memory.check();
  return wrong.empty() ? scratch.check() : wrong;
}

Verdict verify(Problem& problem, const Stream& stream, int runs) {
  Verdict verdict;
  problem.memory.reset();
  try {
    const std::vector<Expected>& expected = problem.expected();
    const Explanation explanation = problem.explanation(stream);
    Arithmetic arithmetic = Arithmetic::kF32;
    if (explanation.chosen >= 0) {
      const KernelVerdict& chosen = explanation.kernels[static_cast<std::size_t>(explanation.chosen)];
      verdict.kernel = chosen.kernel;
      arithmetic = chosen.arithmetic;
    }
    verdict.problem = run_once(problem, stream);
    for (const Expected& output : expected) verdict.outputs.push_back(compare(output, arithmetic));
    const std::uint64_t first = problem.memory.checksum();
    for (int run = 1; run < runs && verdict.problem.empty(); ++run) {
      verdict.problem = run_once(problem, stream);
      if (verdict.problem.empty() && problem.memory.checksum() != first) {
        verdict.problem = "run " + std::to_string(run + 1) + " left other bits than the first";
      }
    }
  } catch (const std::exception& error) {
    verdict.problem = error.what();
  }
  verdict.ok = verdict.problem.empty() && std::all_of(verdict.outputs.begin(), verdict.outputs.end(),
                                                      [](const Comparison& output) { return output.ok; });
  return verdict;
}

Case for_bench(Case timed) {
  timed.verify = false;
  timed.bench = true;
  return timed;
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> list;
    add_gated_delta_stage_cases(list);
    add_gated_delta_rule_cases(list);
    add_gated_delta_prep_step_cases(list);
    add_nn_cases(list);
    add_moe_cases(list);
    add_sampling_cases(list);
    add_quant_cases(list);
    return list;
  }();
  return cases;
}

}  // namespace thalweg::cases
