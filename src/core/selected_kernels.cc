#include "core/selected_kernels.h"

namespace thalweg {

std::string SelectedKernels::of(std::string_view operation) const {
  if (!any_.load(std::memory_order_relaxed)) return {};
  const std::lock_guard lock(mutex_);
  const auto found = kernels_.find(operation);
  return found == kernels_.end() ? std::string() : found->second;
}

void SelectedKernels::select(std::string_view operation, std::string_view kernel) {
  const std::lock_guard lock(mutex_);
  if (kernel.empty()) {
    kernels_.erase(std::string(operation));
  } else {
    kernels_.insert_or_assign(std::string(operation), std::string(kernel));
  }
  any_ = !kernels_.empty();
}

SelectedKernels& selected_kernels() {
  static SelectedKernels instance;
  return instance;
}

}  // namespace thalweg
