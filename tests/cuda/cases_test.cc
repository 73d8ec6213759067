// Every case of the operations that the CUDA backend offers, by each kernel that takes it.

#include "cases/case.h"
#include "core/kernel.h"
#include "cuda/device.h"
#include "ops/backends.h"

namespace thalweg {
namespace {

class Cases : public OnDevice {
 protected:
  template <class Args>
  void verify_all() {
    int runs = 0;
    for (const cases::Case& test : cases::all_cases()) {
      if (!test.verify || test.operation != Args::kName) continue;
      const std::unique_ptr<cases::Problem> problem = test.make(1);
      for (const KernelVerdict& kernel : problem->explanation(cuda_stream()).kernels) {
        if (!kernel.supported) {
          EXPECT_FALSE(kernel.reason.empty()) << test.name << " by " << kernel.kernel;
          continue;
        }
        select_kernel(Args::kName, kernel.kernel);
        const cases::Verdict verdict = cases::verify(*problem, cuda_stream());
        select_kernel(Args::kName, "");
        ++runs;
        EXPECT_TRUE(verdict.ok) << Args::kName << " " << test.name << " by " << kernel.kernel << ": "
                                << verdict.problem;
        for (const cases::Comparison& output : verdict.outputs) {
          EXPECT_LE(output.error, output.bound) << test.name << " " << output.output << " by " << kernel.kernel;
        }
      }
    }
    EXPECT_GE(runs, 10);
  }
};

TEST_F(Cases, ChunkLocalCumsum) { verify_all<ChunkLocalCumsumArgs>(); }
TEST_F(Cases, L2norm) { verify_all<L2normArgs>(); }
TEST_F(Cases, ChunkScaledDotKkt) { verify_all<ChunkScaledDotKktArgs>(); }
TEST_F(Cases, SolveTril) { verify_all<SolveTrilArgs>(); }
TEST_F(Cases, RecomputeWU) { verify_all<RecomputeWUArgs>(); }
TEST_F(Cases, ChunkState) { verify_all<ChunkStateArgs>(); }
TEST_F(Cases, ChunkOutput) { verify_all<ChunkOutputArgs>(); }
TEST_F(Cases, ChunkGatedDeltaRule) { verify_all<ChunkGatedDeltaRuleArgs>(); }
TEST_F(Cases, RecurrentGatedDeltaRule) { verify_all<RecurrentGatedDeltaRuleArgs>(); }
TEST_F(Cases, GatedDeltaPrepStep) { verify_all<GatedDeltaPrepStepArgs>(); }
TEST_F(Cases, CausalConv1d) { verify_all<CausalConv1dArgs>(); }
TEST_F(Cases, CausalConv1dUpdate) { verify_all<CausalConv1dUpdateArgs>(); }
TEST_F(Cases, GatedRmsNorm) { verify_all<GatedRmsNormArgs>(); }

// A kernel that yields to a faster one is not chosen, says why, and can still be asked for.
TEST_F(Cases, KernelsYieldToFasterOnes) {
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

// The same bits every time, by every kernel.
TEST_F(Cases, RunsRepeatThemselves) {
  for (const std::string_view operation : {ChunkGatedDeltaRuleArgs::kName, RecurrentGatedDeltaRuleArgs::kName,
                                           GatedDeltaPrepStepArgs::kName, ChunkStateArgs::kName}) {
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
