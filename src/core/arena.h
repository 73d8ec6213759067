#pragma once

#include <cstddef>
#include <cstdint>

#include "thalweg/device.h"

namespace thalweg {

// Hands out pieces of a workspace, each at the start of a cache line. On a null workspace it only counts: a kernel lays
// out its memory in one function, which tells the size and later the places.
class Arena {
 public:
  Arena() = default;
  explicit Arena(const Workspace& workspace) : base_(static_cast<std::byte*>(workspace.data)) {}

  template <class T>
  T* take(std::int64_t count) {
    const std::size_t at = used_;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    used_ += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }

  std::size_t used() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace thalweg
