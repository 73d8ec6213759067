#include "core/kernel.h"

#include <gtest/gtest.h>

#include "core/selected_kernels.h"

namespace thalweg {
namespace {

std::string refuses(const SwigluArgs&, const Stream&) { return "refuses"; }
std::size_t seven_bytes(const SwigluArgs&, const Stream&) { return 7; }

template <int kMicroseconds>
double costs(const SwigluArgs&, const Stream&) {
  return kMicroseconds;
}

constexpr Kernel<SwigluArgs> supporting(std::string_view name,
                                        double (*cost)(const SwigluArgs&, const Stream&) = nullptr) {
  return {
      .name = name, .supports = always_supported<SwigluArgs>, .workspace = seven_bytes, .run = nullptr, .cost = cost};
}
constexpr Kernel<SwigluArgs> refusing(std::string_view name) {
  return {.name = name, .supports = refuses, .workspace = no_workspace<SwigluArgs>, .run = nullptr, .cost = costs<0>};
}

std::string planned(KernelList<SwigluArgs> kernels, std::string_view selected = {}) {
  const Plan<SwigluArgs> plan = make_plan(kernels, SwigluArgs{}, Stream{}, selected);
  return plan ? std::string(plan.kernel->name) : "";
}

TEST(Plan, HasTheSupportingKernelOfLowestCost) {
  const Kernel<SwigluArgs> kernels[] = {refusing("refusing"), supporting("slow", costs<9>),
                                        supporting("fast", costs<2>), supporting("medium", costs<5>)};
  EXPECT_EQ(planned(kernels), "fast");
  EXPECT_EQ(make_plan(KernelList<SwigluArgs>(kernels), SwigluArgs{}, Stream{}).workspace, 7U);
}

TEST(Plan, HasTheFirstOfEqualCosts) {
  const Kernel<SwigluArgs> kernels[] = {supporting("first", costs<2>), supporting("second", costs<2>)};
  EXPECT_EQ(planned(kernels), "first");
  const Kernel<SwigluArgs> without_costs[] = {refusing("refusing"), supporting("first"), supporting("second")};
  EXPECT_EQ(planned(without_costs), "first");
}

TEST(Plan, HasTheSelectedKernelIfItSupports) {
  const Kernel<SwigluArgs> kernels[] = {supporting("fast", costs<1>), supporting("slow", costs<3>),
                                        refusing("refusing")};
  EXPECT_EQ(planned(kernels, "slow"), "slow");
  EXPECT_EQ(planned(kernels, "refusing"), "");
  EXPECT_EQ(planned(kernels, "absent"), "");
}

int asked = 0;  // how often counting() has been
template <bool kSupports>
std::string counting(const SwigluArgs&, const Stream&) {
  ++asked;
  return kSupports ? "" : "refuses";
}
template <bool kSupports, int kMicroseconds>
constexpr Kernel<SwigluArgs> counted(std::string_view name) {
  return {.name = name,
          .supports = counting<kSupports>,
          .workspace = no_workspace<SwigluArgs>,
          .run = nullptr,
          .cost = costs<kMicroseconds>};
}

// supports() of a dear kernel may take longer than the whole plan of a cheap one.
TEST(Plan, AsksNoKernelThatCostsMoreThanTheOneThatRuns) {
  const Kernel<SwigluArgs> kernels[] = {counted<true, 9>("dear"), counted<false, 5>("refusing"),
                                        counted<true, 7>("cheap"), counted<false, 8>("dear and refusing")};
  asked = 0;
  EXPECT_EQ(planned(kernels), "cheap");
  EXPECT_EQ(asked, 2);
}

TEST(StepPlan, HasTheSelectedKernelWhereItSupports) {
  const Kernel<SwigluArgs> kernels[] = {supporting("fast", costs<1>), supporting("slow", costs<3>),
                                        refusing("refusing")};
  const auto step = [&](std::string_view selected) {
    return make_step_plan(KernelList<SwigluArgs>(kernels), SwigluArgs{}, Stream{}, selected).kernel->name;
  };
  EXPECT_EQ(step(""), "fast");
  EXPECT_EQ(step("slow"), "slow");
  EXPECT_EQ(step("refusing"), "fast");
  EXPECT_EQ(step("absent"), "fast");
}

TEST(SelectedKernels, AreKeptByOperation) {
  SelectedKernels selected;
  EXPECT_EQ(selected.of("linear"), "");
  selected.select("linear", "exact");
  selected.select("linear", "wgmma");
  selected.select("add", "fours");
  EXPECT_EQ(selected.of("linear"), "wgmma");
  EXPECT_EQ(selected.of("mul_mat_id"), "");
  selected.select("linear", "");
  EXPECT_EQ(selected.of("linear"), "");
  EXPECT_EQ(selected.of("add"), "fours");
}

TEST(Plan, IsEmptyWhereNoKernelSupports) {
  const Kernel<SwigluArgs> kernels[] = {refusing("refusing")};
  EXPECT_EQ(planned(kernels), "");
  EXPECT_EQ(planned({}), "");
}

TEST(Refusal, KeepsExactPrecisionFromKernelsThatRoundActivations) {
  const auto kernel = [](Arithmetic arithmetic) {
    return Kernel<LinearArgs>{.name = "kernel",
                              .supports = always_supported<LinearArgs>,
                              .workspace = no_workspace<LinearArgs>,
                              .run = nullptr,
                              .arithmetic = arithmetic};
  };
  LinearArgs args;
  for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
    args.precision = precision;
    const bool exact = precision == MatmulPrecision::kExact;
    EXPECT_EQ(refusal(kernel(Arithmetic::kF32), args, Stream{}), "");
    EXPECT_EQ(refusal(kernel(Arithmetic::k16Bit), args, Stream{}).empty(), !exact);
    EXPECT_EQ(refusal(kernel(Arithmetic::k8Bit), args, Stream{}).empty(), !exact);
  }
}

}  // namespace
}  // namespace thalweg
