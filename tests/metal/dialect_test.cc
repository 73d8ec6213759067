#include "metal/host/dialect.h"

#include <gtest/gtest.h>

namespace thalweg::metal {
namespace {

std::vector<Finding> findings_of(std::string_view source) {
  std::vector<Finding> findings;
  const std::vector<Token> tokens = tokenize(source);
  read_program(tokens, findings);
  check_dialect(tokens, findings);
  return findings;
}

void expect_refused(std::string_view source, std::string_view why, int line = 1) {
  const std::vector<Finding> findings = findings_of(source);
  ASSERT_EQ(findings.size(), 1U) << source;
  EXPECT_NE(findings.front().text.find(why), std::string::npos) << findings.front().text;
  EXPECT_EQ(findings.front().line, line);
}

TEST(Dialect, AcceptsAKernel) {
  const auto findings = findings_of(R"(
struct P { int n; };
constant float kTable[2] = {1.0f, 2e-3f};
template <class T> inline T twice(device const T* x, int i) { return 2 * x[i]; }
inline void put(threadgroup float* s, thread float& sum, constant P& p) { s[p.n] = sum * sum; sum = s[0] & 1; }
kernel void f(constant P& p [[buffer(0)]], device float* y [[buffer(1)]], threadgroup float* s [[threadgroup(0)]],
              uint t [[thread_index_in_threadgroup]]) {
  threadgroup float* later = s + 4;
  float local[4];
  local[t & 3] = twice(static_cast<device const float*>(y), int(t));
  put(later, local[0], p);
}
)");
  EXPECT_TRUE(findings.empty()) << findings.front().line << ": " << findings.front().text;
}

TEST(Dialect, RefusesWhatMetalLacks) {
  expect_refused("inline float f(float x) { double y = x; return y; }", "double");
  expect_refused("inline int f(int x) {\n  auto g = [x](int y) { return x + y; };\n  return g(1);\n}", "lambda", 2);
  expect_refused("inline int f(int x) { return [x] { return x; }(); }", "lambda");
  expect_refused("inline void f() { throw 1; }", "throw");
  expect_refused("inline void f(thread int* x) { delete x; }", "delete");
  expect_refused("struct S { virtual void f(); };", "virtual");
  expect_refused("inline void f() { goto end; end:; }", "goto");
  expect_refused("inline int f() { static int calls; return ++calls; }", "static");
}

TEST(Dialect, RefusesRecursion) {
  expect_refused("inline int f(int n) { return n == 0 ? 1 : n * f(n - 1); }", "recursion");
  EXPECT_EQ(
      findings_of("int g(int n);\ninline int f(int n) { return g(n); }\ninline int g(int n) { return f(n); }").size(),
      2U);
}

TEST(Dialect, RefusesPointersWithoutAddressSpace) {
  expect_refused("inline float f(float* x) { return x[0]; }", "address space");
  expect_refused("inline float f(device float* x) { const float* y = x; return y[0]; }", "address space");
  expect_refused("struct S { int n; };\ninline int f(const S& s) { return s.n; }", "address space", 2);
}

TEST(Dialect, RefusesWhatTheExecutorCannotCheck) {
  expect_refused("inline void f() {\n  threadgroup float tile[64];\n}", "threadgroup memory", 2);
  expect_refused("kernel void f(device float* x) { x[0] = 1; }", "attribute");
  expect_refused("kernel void f(uint t [[thread_position_in_threadgroup]]) {}", "uint3");
  expect_refused("constant float kScale [[function_constant(0)]];", "function constants");
}

TEST(Dialect, ReadsKernels) {
  std::vector<Finding> findings;
  const Program program = read_program(tokenize(R"(# 1 "a.metal"
constant int kWidth [[function_constant(4)]];
[[max_total_threads_per_threadgroup(64)]]
kernel void scale(constant P& p [[buffer(0)]], device const half* x [[buffer(1)]], device half* y [[buffer(2)]],
                  threadgroup float* s [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]]) {}
)"),
                                       findings);
  ASSERT_EQ(program.kernels.size(), 1U);
  ASSERT_EQ(program.constants.size(), 1U);
  EXPECT_EQ(program.constants[0].name, "kWidth");
  EXPECT_EQ(program.constants[0].index, 4);
  const KernelDeclaration& kernel = program.kernels[0];
  EXPECT_EQ(kernel.name, "scale");
  EXPECT_EQ(kernel.max_threads, 64);
  ASSERT_EQ(kernel.parameters.size(), 5U);
  EXPECT_TRUE(kernel.parameters[0].reference);
  EXPECT_EQ(kernel.parameters[1].type, "device const half *");
  EXPECT_FALSE(kernel.parameters[1].writable);
  EXPECT_TRUE(kernel.parameters[2].writable);
  EXPECT_EQ(kernel.parameters[3].attribute, "threadgroup");
  EXPECT_EQ(kernel.parameters[4].attribute, "threadgroup_position_in_grid");
}

}  // namespace
}  // namespace thalweg::metal
