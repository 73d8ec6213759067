#pragma once

// Parses preprocessed kernels in the Metal Shading Language: their declarations, and whether they stay within the
// dialect that the executor supports.

#include <string>
#include <string_view>
#include <vector>

namespace thalweg::metal {

struct Token {
  enum class Kind { kWord, kNumber, kText, kSign };
  Kind kind = Kind::kSign;
  std::string text;
  std::string file;
  int line = 0;
};

// The tokens of preprocessed source. "[[" and "]]" are tokens of their own where they open and close an attribute.
std::vector<Token> tokenize(std::string_view preprocessed);

// A parameter of a kernel: "device const float* x [[buffer(2)]]".
struct KernelParameter {
  std::string type;  // with address space, without const at its end
  std::string name;
  std::string attribute;  // buffer, threadgroup, thread_index_in_threadgroup, ...
  int index = -1;         // of buffer and threadgroup
  bool reference = false;
  bool writable = false;  // device memory that is not const
};

struct KernelDeclaration {
  std::string name;
  int max_threads = 1024;  // [[max_total_threads_per_threadgroup(..)]]
  std::vector<KernelParameter> parameters;
};

// constant int name [[function_constant(index)]];
struct FunctionConstant {
  std::string name;
  int index = -1;
};

struct Program {
  std::vector<KernelDeclaration> kernels;
  std::vector<FunctionConstant> constants;
};

struct Finding {
  std::string file;
  int line = 0;
  std::string text;
};

// Kernels and function constants. Parameters that cannot be bound are findings.
Program read_program(const std::vector<Token>& tokens, std::vector<Finding>& findings);

// Findings: what Metal lacks or the executor cannot check. These are double, lambdas, exceptions, new and delete,
// virtual functions, goto, static variables, recursion, pointers and references without an address space, threadgroup
// memory that is not a parameter of the kernel.
void check_dialect(const std::vector<Token>& tokens, std::vector<Finding>& findings);

}  // namespace thalweg::metal
