#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace thalweg {

// The kernels that select_kernel() and THALWEG_KERNEL name, by operation. ops/backends.cc fills it before the first
// call is planned; kernels that are made of other operations read it too.
class SelectedKernels {
 public:
  // Empty if none is selected.
  std::string of(std::string_view operation) const;
  // An empty `kernel`: none.
  void select(std::string_view operation, std::string_view kernel);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string, std::less<>> kernels_;
  std::atomic<bool> any_ = false;  // spares a call the lock where nothing is selected
};

// Of the process.
SelectedKernels& selected_kernels();

}  // namespace thalweg
