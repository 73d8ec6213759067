// Rounding::kSeed rounds exactly where the contract says: a result is much closer to the oracle that rounds there than
// the exact and the rounded oracle are to each other. The bounds of the case table alone would accept a kernel that
// rounds less.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cases/case.h"
#include "ops/run_with_workspace.h"
#include "reference/gated_delta_rule.h"

namespace thalweg {
namespace {

using reference::Array;
using reference::Precision;

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// For every case with Rounding::kSeed; outputs(args) pairs the tensors with the rounded oracle's results.
template <class Args, class Outputs>
void expect_rounding(Outputs outputs) {
  int count = 0;
  for (const cases::Case& test : cases::all_cases()) {
    if (test.operation != Args::kName || test.name.find("_seed") == std::string::npos) continue;
    SCOPED_TRACE(test.name);
    const auto problem = test.make(1);
    const Args& args = static_cast<const cases::OperationProblem<Args>&>(*problem).args;
    Args unrounded = args;
    unrounded.rounding = Rounding::kF32;
    const auto with = outputs(args);
    const auto without = outputs(unrounded);
    run_with_workspace(args);
    for (std::size_t i = 0; i < with.size(); ++i) {
      const double apart = distance(with[i].second.values, without[i].second.values);
      if (apart == 0.0) continue;  // an output before the first rounding
      const std::vector<double> actual = reference::read(with[i].first).values;
      EXPECT_LT(distance(actual, with[i].second.values), 0.2 * apart) << "output " << i;
      ++count;
    }
  }
  EXPECT_GE(count, 6);
}

using Named = std::vector<std::pair<Tensor, Array>>;

TEST(SeedRounding, ChunkScaledDotKkt) {
  expect_rounding<ChunkScaledDotKktArgs>([](const ChunkScaledDotKktArgs& args) {
    return Named{{args.a, reference::chunk_scaled_dot_kkt(args, Precision::kRounded)}};
  });
}

TEST(SeedRounding, RecomputeWU) {
  expect_rounding<RecomputeWUArgs>([](const RecomputeWUArgs& args) {
    const reference::WU result = reference::recompute_w_u(args, Precision::kRounded);
    return Named{{args.w, result.w}, {args.u, result.u}};
  });
}

TEST(SeedRounding, ChunkState) {
  expect_rounding<ChunkStateArgs>([](const ChunkStateArgs& args) {
    const reference::ChunkStates result = reference::chunk_state(args, Precision::kRounded);
    return Named{{args.h, result.h}, {args.v_new, result.v_new}, {args.final_state, result.final_state}};
  });
}

TEST(SeedRounding, ChunkOutput) {
  expect_rounding<ChunkOutputArgs>([](const ChunkOutputArgs& args) {
    return Named{{args.o, reference::chunk_output(args, Precision::kRounded)}};
  });
}

}  // namespace
}  // namespace thalweg
