#include "core/kernel.h"

#include <gtest/gtest.h>

namespace thalweg {
namespace {

std::string refuses(const SwigluArgs&, const Stream&) { return "refuses"; }
std::string yields(const SwigluArgs&, const Stream&) { return "another is faster"; }

constexpr Kernel<SwigluArgs> kernel_of(std::string_view name, bool supports, bool has_yielded) {
  return {name,
          supports ? always_supported<SwigluArgs> : refuses,
          no_workspace<SwigluArgs>,
          nullptr,
          nullptr,
          Arithmetic::kF32,
          has_yielded ? yields : nullptr};
}

std::string preferred(KernelList<SwigluArgs> kernels, std::string_view selected = {}) {
  const Kernel<SwigluArgs>* kernel = make_plan(kernels, SwigluArgs{}, Stream{}, selected).kernel;
  return kernel == nullptr ? "" : std::string(kernel->name);
}

TEST(PreferredKernel, IsTheFirstThatSupportsAndDoesNotYield) {
  const Kernel<SwigluArgs> kernels[] = {kernel_of("refusing", false, false), kernel_of("yielding", true, true),
                                        kernel_of("first", true, false), kernel_of("second", true, false)};
  EXPECT_EQ(preferred(kernels), "first");
}

TEST(PreferredKernel, IsTheFirstOfThoseThatYieldWhereNoOtherSupports) {
  const Kernel<SwigluArgs> kernels[] = {kernel_of("refusing", false, true), kernel_of("first", true, true),
                                        kernel_of("second", true, true), kernel_of("last", false, false)};
  EXPECT_EQ(preferred(kernels), "first");
}

TEST(PreferredKernel, IsTheSelectedOneIfThatSupports) {
  const Kernel<SwigluArgs> kernels[] = {kernel_of("first", true, false), kernel_of("yielding", true, true),
                                        kernel_of("refusing", false, false)};
  EXPECT_EQ(preferred(kernels, "yielding"), "yielding");
  EXPECT_EQ(preferred(kernels, "refusing"), "");
  EXPECT_EQ(preferred(kernels, "absent"), "");
}

TEST(PreferredKernel, IsNoneWhereNoneSupports) {
  const Kernel<SwigluArgs> kernels[] = {kernel_of("refusing", false, false)};
  EXPECT_EQ(preferred(kernels), "");
  EXPECT_EQ(preferred({}), "");
}

}  // namespace
}  // namespace thalweg
