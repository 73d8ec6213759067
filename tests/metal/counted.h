#pragma once

// What the executor counts of one call.

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "metal/backend.h"
#include "metal/host/attach.h"
#include "metal/host/executor.h"
#include "thalweg/backend.h"
#include "thalweg/operation.h"

namespace thalweg::metal {

// Tensors of zeros in the backend's memory, which is host memory.
class Counted : public ::testing::Test {
 protected:
  static constexpr Device kMetal{DeviceType::kMetal, 0};
  static constexpr Stream kStream{kMetal, 0, nullptr};

  static void SetUpTestSuite() { attach_executor(); }  // NOLINT(readability-identifier-naming)

  Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor view(nullptr, dtype, shape, kMetal);
    memory_.push_back(std::make_unique<std::vector<std::byte>>(static_cast<std::size_t>(bytes_of(dtype, view.size()))));
    view.data = memory_.back()->data();
    return view;
  }
  Tensor integers(std::initializer_list<std::int32_t> values) {
    const Tensor view = tensor(DType::kI32, {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(view.data));
    return view;
  }

  template <class Args>
  Counts counts_of(const Args& args, const Stream& stream = kStream) {
    HostWorkspace scratch;
    const Workspace workspace = scratch.reserve(workspace_size(args, stream));
    reset_executor_counts();
    run(args, workspace, stream);
    return executor_total();
  }

  static Counts of_kernel(std::string_view kernel) {
    for (const KernelCounts& counts : executor_counts()) {
      if (counts.kernel == kernel) return counts.counts;
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
};

}  // namespace thalweg::metal
