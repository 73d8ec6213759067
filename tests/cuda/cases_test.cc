// Every case of the operations that the CUDA backend offers, by each kernel that takes it.

#include "cases/case.h"
#include "core/kernel.h"
#include "cuda/device.h"
#include "ops/backends.h"

namespace thalweg {
namespace {

// A test for each operation, so that a list of kernels that lost its entries fails by name.
class Cases : public OnDevice, public testing::WithParamInterface<std::string_view> {};

TEST_P(Cases, EveryKernelIsRight) {
  const std::string_view operation = GetParam();
  int runs = 0;
  for (const cases::Case& test : cases::all_cases()) {
    if (!test.verify || test.operation != operation) continue;
    const std::unique_ptr<cases::Problem> problem = test.make(1);
    for (const KernelVerdict& kernel : problem->explanation(cuda_stream()).kernels) {
      if (!kernel.supported) {
        EXPECT_FALSE(kernel.reason.empty()) << test.name << " by " << kernel.kernel;
        continue;
      }
      select_kernel(operation, kernel.kernel);
      const cases::Verdict verdict = cases::verify(*problem, cuda_stream());
      select_kernel(operation, "");
      ++runs;
      EXPECT_TRUE(verdict.ok) << operation << " " << test.name << " by " << kernel.kernel << ": " << verdict.problem;
      for (const cases::Comparison& output : verdict.outputs) {
        EXPECT_LE(output.error, output.bound) << test.name << " " << output.output << " by " << kernel.kernel;
      }
    }
  }
  EXPECT_GE(runs, 10);
}

// The operations that the backend offers.
std::vector<std::string_view> offered_operations() {
  std::vector<std::string_view> names;
  for_each_operation([&]<class Args>() {
    if (!backend(DeviceType::kCuda).kernels_of<Args>().empty()) names.push_back(Args::kName);
  });
  return names;
}
INSTANTIATE_TEST_SUITE_P(Operations, Cases, testing::ValuesIn(offered_operations()),
                         [](const auto& test) { return std::string(test.param); });

// An operation whose whole list is lost would otherwise disappear from these tests.
TEST(Operations, AtLeastTwentyThreeAreOffered) { EXPECT_GE(offered_operations().size(), 23U); }

class Choice : public OnDevice {};

// A kernel that costs more is not chosen, explain() says so, and it can still be selected.
TEST_F(Choice, TheKernelOfLowestCost) {
  const Device device{DeviceType::kCuda, 0};
  const auto explain_rows = [&](std::int64_t rows, std::int64_t tokens) {
    constexpr std::int64_t kHeads = 16;
    constexpr std::int64_t kHead = 128;
    ChunkGatedDeltaRuleArgs args;
    args.q = ConstTensor(nullptr, DType::kBF16, {rows, tokens, kHeads, kHead}, device);
    args.k = args.q;
    args.v = args.q;
    args.o = Tensor(nullptr, DType::kBF16, {rows, tokens, kHeads, kHead}, device);
    args.g = ConstTensor(nullptr, DType::kF32, {rows, tokens, kHeads}, device);
    args.beta = args.g;
    args.head_map = HeadMap::kGrouped;
    return explain(args, cuda_stream());
  };
  const auto verdict = [](const Explanation& explanation, std::string_view kernel) {
    for (const KernelVerdict& candidate : explanation.kernels) {
      if (candidate.kernel == kernel) return candidate;
    }
    return KernelVerdict{};
  };
  const auto chosen = [](const Explanation& explanation) {
    return explanation.kernels.at(static_cast<std::size_t>(explanation.chosen)).kernel;
  };
  const Explanation few = explain_rows(1, 64);
  const Explanation many = explain_rows(1, 4096);
  if (!verdict(many, "wgmma").supported) GTEST_SKIP() << verdict(many, "wgmma").reason;
  EXPECT_EQ(chosen(few), "wgmma_fused");
  EXPECT_EQ(chosen(many), "wgmma");
  EXPECT_EQ(verdict(few, "wgmma_fused").reason, "");
  for (const char* kernel : {"wgmma_fused", "wgmma_fused_pairs"}) {
    EXPECT_TRUE(verdict(many, kernel).supported) << kernel;
    EXPECT_NE(verdict(many, kernel).reason, "") << kernel;
    select_kernel(ChunkGatedDeltaRuleArgs::kName, kernel);
    EXPECT_EQ(chosen(explain_rows(1, 4096)), kernel);
    select_kernel(ChunkGatedDeltaRuleArgs::kName, "");
  }
}

// What is selected for an operation holds for the steps of a kernel that is made of it, where it supports them.
TEST_F(Choice, SelectionsReachTheStepsOfMoeFfn) {
  const Device device{DeviceType::kCuda, 0};
  constexpr std::int64_t kTokens = 3;
  constexpr std::int64_t kWidth = 256;
  constexpr std::int64_t kExperts = 4;
  MoeFfnArgs args;
  args.x = ConstTensor(nullptr, DType::kBF16, {kTokens, kWidth}, device);
  args.router = ConstTensor(nullptr, DType::kF32, {kExperts, kWidth}, device);
  args.gate = ConstTensor(nullptr, DType::kQ4_K, {kExperts, kWidth, kWidth}, device);
  args.up = args.gate;
  args.down = args.gate;
  args.shared_gate = ConstTensor(nullptr, DType::kQ4_K, {kWidth, kWidth}, device);
  args.shared_up = args.shared_gate;
  args.shared_down = args.shared_gate;
  args.shared_router = ConstTensor(nullptr, DType::kF32, {kWidth}, device);
  args.y = Tensor(nullptr, DType::kBF16, {kTokens, kWidth}, device);
  args.top_k = 2;
  args.precision = MatmulPrecision::kFast;
  const auto remark_of = [&](const char* kernel) {
    select_kernel(MoeFfnArgs::kName, kernel);
    const Explanation explanation = explain(args, cuda_stream());
    select_kernel(MoeFfnArgs::kName, "");
    return explanation.kernels.at(static_cast<std::size_t>(explanation.chosen)).reason;
  };
  const auto expect_steps = [&](const char* kernel, std::string_view experts, std::string_view shared) {
    const std::string remark = remark_of(kernel);
    for (const auto& [step, by] :
         {std::pair("; gate: ", experts), {"; down: ", experts}, {"; shared down: ", shared}}) {
      EXPECT_NE(remark.find(step + std::string(by)), std::string::npos) << remark;
    }
  };
  for (const auto& [experts, shared] : {std::pair("exact", "stream"), {"stream", "exact"}, {"matvec", "matvec"}}) {
    select_kernel(MulMatIdArgs::kName, experts);
    select_kernel(LinearArgs::kName, shared);
    expect_steps("steps", experts, shared);
    expect_steps("exact", "exact", "exact");  // the others round activations
  }
  select_kernel(MulMatIdArgs::kName, "");
  select_kernel(LinearArgs::kName, "");
}

// A draft's token has the bits of a single one, though another kernel runs it.
TEST_F(Choice, FewTokensOfMoeFfnHaveTheBitsOfOne) {
  int compared = 0;
  for (const cases::Case& test : cases::all_cases()) {
    if (!test.verify || test.operation != MoeFfnArgs::kName) continue;
    const std::unique_ptr<cases::Problem> problem = test.make(4);
    std::set<std::uint64_t> left;
    int runs = 0;
    for (const KernelVerdict& kernel : problem->explanation(cuda_stream()).kernels) {
      if (!kernel.supported || (kernel.kernel != "staged" && kernel.kernel != "matvec")) continue;
      select_kernel(MoeFfnArgs::kName, kernel.kernel);
      EXPECT_EQ(cases::run_once(*problem, cuda_stream()), "") << test.name << " by " << kernel.kernel;
      select_kernel(MoeFfnArgs::kName, "");
      left.insert(problem->memory.checksum());
      ++runs;
    }
    if (runs < 2) continue;
    EXPECT_EQ(left.size(), 1U) << test.name;
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "no case that both kernels take";
}

// The same bits every time, by every kernel.
TEST_F(Choice, RunsRepeatThemselves) {
  for (const std::string_view operation : offered_operations()) {
    int compared = 0;
    for (const cases::Case& test : cases::all_cases()) {
      if (!test.verify || test.operation != operation || ++compared > 20) continue;
      const std::unique_ptr<cases::Problem> problem = test.make(1);
      for (const KernelVerdict& kernel : problem->explanation(cuda_stream()).kernels) {
        if (!kernel.supported) continue;
        select_kernel(operation, kernel.kernel);
        const cases::Verdict verdict = cases::verify(*problem, cuda_stream(), 3);
        select_kernel(operation, "");
        EXPECT_TRUE(verdict.ok) << operation << " " << test.name << " by " << kernel.kernel << ": " << verdict.problem;
      }
    }
  }
}

}  // namespace
}  // namespace thalweg
