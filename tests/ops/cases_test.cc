// The table of cases: its bounds reject wrong results, it has enough cases, and results do not depend on threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cases/case.h"
#include "core/kernel.h"
#include "cpu/row_layout.h"
#include "thalweg/backend.h"
#include "thalweg/moe.h"
#include "thalweg/nn.h"

namespace thalweg {
namespace {

using cases::all_cases;
using cases::Case;

TEST(Cases, NamesAreDistinct) {
  std::set<std::string> seen;
  for (const Case& test : all_cases()) {
    EXPECT_TRUE(seen.insert(std::string(test.operation) + "/" + test.name).second)
        << test.operation << " " << test.name;
  }
}

TEST(Cases, EveryOperationHasAtLeastTenAndAllTogetherSixHundred) {
  std::map<std::string_view, int> counts;
  int total = 0;
  for (const Case& test : all_cases()) {
    if (!test.verify) continue;
    ++counts[test.operation];
    ++total;
  }
  for_each_operation([&]<class Args>() { EXPECT_GE(counts[Args::kName], 10) << Args::kName; });
  EXPECT_GE(total, 600);
}

// make_plan() has a bit for each kernel of a list.
TEST(Kernels, NoListIsLongerThanAPlanCanHandle) {
  for (const BackendInfo& info : backends()) {
    for (const OperationInfo& operation : info.operations) {
      EXPECT_LE(operation.kernels.size(), kMostKernels) << device_type_name(info.type) << " " << operation.name;
    }
  }
}

TEST(Cases, EveryOperationIsTimed) {
  for_each_operation([]<class Args>() {
    const bool timed = std::any_of(all_cases().begin(), all_cases().end(),
                                   [](const Case& test) { return test.operation == Args::kName && test.bench; });
    EXPECT_TRUE(timed) << Args::kName;
  });
}

// An output of zeros must fail unless the exact result is zero. Only packing, which is lossy, may allow errors above a
// twentieth.
TEST(Cases, NoBoundPassesZeros) {
  int checked = 0;
  for (const Case& test : all_cases()) {
    if (!test.verify) continue;
    const auto problem = test.make(1);
    for (cases::Expected expected : problem->expected()) {
      const bool zero = std::all_of(expected.exact.begin(), expected.exact.end(), [](double x) { return x == 0.0; });
      if (zero) continue;
      expected.indices.clear();
      std::vector<float> zeros(expected.exact.size(), 0.0F);
      expected.actual = ConstTensor(zeros.data(), DType::kF32, {static_cast<std::int64_t>(zeros.size())}, kCpu);
      EXPECT_FALSE(cases::compare(expected).ok) << test.operation << " " << test.name << " " << expected.name;
      if (test.operation != QuantizeArgs::kName) {
        EXPECT_LT(expected.bound.l2, 0.05) << test.operation << " " << test.name << " " << expected.name;
      }
      ++checked;
    }
  }
  EXPECT_GE(checked, 600);
}

// The comparison detects a single wrong element, NaN and infinity.
TEST(Cases, ComparisonSeesOneWrongElement) {
  reference::Array exact({100}, 1.0);
  std::vector<float> actual(100, 1.0F);
  const ConstTensor view(actual.data(), DType::kF32, {100}, kCpu);
  const cases::Expected expected = cases::expect("x", view, exact, exact, cases::f32_bound(100));
  EXPECT_TRUE(cases::compare(expected).ok);
  for (const float wrong :
       {1.001F, -1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    actual[63] = wrong;
    EXPECT_FALSE(cases::compare(expected).ok) << wrong;
  }
}

// A problem whose runs write 1 and, within the bound, a little more each time.
class DriftingProblem final : public cases::Problem {
 public:
  explicit DriftingProblem(float drift) : drift_(drift), y_(memory.output(DType::kF32, {4})) {}
  std::size_t workspace_bytes(const Stream&) const override { return 0; }
  Explanation explanation(const Stream&) const override { return {}; }
  void run(Workspace, const Stream&) const override {
    std::fill_n(static_cast<float*>(y_.data), 4, 1.0F + drift_ * static_cast<float>(runs_++));
  }

 protected:
  std::vector<cases::Expected> oracle() const override {
    const reference::Array exact({4}, 1.0);
    return {cases::expect("y", y_, exact, exact, cases::f32_bound(100))};
  }

 private:
  float drift_;
  Tensor y_;
  mutable int runs_ = 0;
};

TEST(Cases, RunsThatLeaveOtherBitsAreNoticed) {
  DriftingProblem steady(0.0F);
  EXPECT_TRUE(cases::verify(steady, Stream::cpu(1), 3).ok);
  DriftingProblem drifting(1e-6F);
  EXPECT_TRUE(cases::verify(drifting, Stream::cpu(1)).ok);
  const cases::Verdict verdict = cases::verify(drifting, Stream::cpu(1), 3);
  EXPECT_FALSE(verdict.ok);
  EXPECT_NE(verdict.problem.find("other bits"), std::string::npos) << verdict.problem;
}

// Bitwise equal memory after runs on 1, 2 and 5 threads. One test per operation, so that ctest runs them in parallel.
class CasesThreads : public testing::TestWithParam<std::string_view> {};

TEST_P(CasesThreads, ResultsDoNotDependOnTheirNumber) {
  for (const Case& test : all_cases()) {
    if (!test.verify || test.operation != GetParam()) continue;
    const auto problem = test.make(2);
    std::uint64_t alone = 0;
    for (const int threads : {1, 2, 5}) {
      ASSERT_EQ(cases::run_once(*problem, Stream::cpu(threads)), "") << test.name << " with " << threads << " threads";
      const std::uint64_t left = problem->memory.checksum();
      if (threads == 1) alone = left;
      ASSERT_EQ(left, alone) << test.name << " with " << threads << " threads";
    }
  }
}

std::vector<std::string_view> operation_names() {
  std::vector<std::string_view> names;
  for_each_operation([&]<class Args>() { names.push_back(Args::kName); });
  return names;
}
INSTANTIATE_TEST_SUITE_P(Operations, CasesThreads, testing::ValuesIn(operation_names()),
                         [](const auto& test) { return std::string(test.param); });

// The same where vector lanes take rows that are far apart, whatever this processor's choice.
TEST(Cases, ResultsDoNotDependOnTheOrderOfRows) {
  const std::set<std::string_view> products = {LinearArgs::kName, MulMatIdArgs::kName, MulMmIdArgs::kName,
                                               MulMvIdArgs::kName, MoeFfnArgs::kName};
  const bool chosen = cpu::spreads_lanes();
  for (const Case& test : all_cases()) {
    if (!test.verify || !products.contains(test.operation)) continue;
    const auto problem = test.make(3);
    std::set<std::uint64_t> left;
    for (const bool spreads : {false, true}) {
      cpu::spreads_lanes() = spreads;
      EXPECT_EQ(cases::run_once(*problem, Stream::cpu(2)), "") << test.operation << " " << test.name;
      left.insert(problem->memory.checksum());
    }
    EXPECT_EQ(left.size(), 1U) << test.operation << " " << test.name;
  }
  cpu::spreads_lanes() = chosen;
}

TEST(Backends, TheCpuOffersEveryOperation) {
  const std::vector<BackendInfo> list = backends();
  ASSERT_EQ(list.size(), 3U);
  EXPECT_TRUE(list[0].available);
  EXPECT_FALSE(list[0].instruction_sets.empty());
  for (const OperationInfo& operation : list[0].operations) EXPECT_FALSE(operation.kernels.empty()) << operation.name;
}

}  // namespace
}  // namespace thalweg
