#pragma once

// What the suites compare before they time a row: a sample of the call's outputs, against the float64 oracle of the
// same call cut down to the sample. The outputs hold NaN before the run.

#include <cstddef>
#include <string>
#include <vector>

#include "cases/case.h"
#include "cases/tensors.h"
#include "thalweg/device_memory.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/moe.h"

namespace thalweg::app {

// Copies of device tensors on the host. A strided view is copied with everything between its first and last element.
class HostCopies {
 public:
  explicit HostCopies(const Stream& stream) : stream_(stream) {}

  template <class Pointer>
  BasicTensor<Pointer> copy(BasicTensor<Pointer> view) {
    if (!view.defined() || view.size() == 0) return view;
    view.data = add(view);
    view.device = {};
    return view;
  }
  template <class Args>
  Args copy_all(Args args) {
    cases::visit_tensors(args, [&](auto& tensor) { tensor = copy(tensor); });
    return args;
  }

  // Reads all of them again, after a run.
  void refresh();

 private:
  struct Copy {
    const void* device = nullptr;
    std::vector<std::byte> host;
  };
  void* add(const ConstTensor& view);

  Stream stream_;
  std::vector<Copy> copies_;
};

// Bytes from the first element of a view to its last.
std::size_t span_bytes(const ConstTensor& view);
// Fills a view of device memory, and what lies between its rows, with NaN.
void fill_with_nan(const Stream& stream, const Tensor& view);

// The arithmetic class of the kernel that runs.
Arithmetic arithmetic_of(const Explanation& explanation);

// Empty if every output is within its bound, else the first that is not: "o: error 0.1, bound 0.004".
std::string find_error(const std::vector<cases::Expected>& outputs, Arithmetic arithmetic);

// What the outputs of a sample must hold; arguments on the host. Bounds are those of the cases, times kSampleAllowance
// for kernels in 16 bits: the error of a sample varies more than that of a whole output.
inline constexpr double kSampleAllowance = 1.5;
std::vector<cases::Expected> expect_recurrence(const RecurrentGatedDeltaRuleArgs& args);
std::vector<cases::Expected> expect_step(const GatedDeltaPrepStepArgs& args);
std::vector<cases::Expected> expect_experts(const MulMatIdArgs& args);
std::vector<cases::Expected> expect_moe(const MoeFfnArgs& args);
std::vector<cases::Expected> expect_linear(const LinearArgs& args);
// Of one sequence and head; o holds the rows of `tokens` alone.
std::vector<cases::Expected> expect_prefill(const ChunkGatedDeltaRuleArgs& args,
                                            const std::vector<std::int64_t>& tokens);

}  // namespace thalweg::app
