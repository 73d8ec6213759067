#pragma once

#include <cstddef>
#include <cstdint>

#include "thalweg/device.h"

namespace thalweg {

// Allocates arrays from a workspace, each at the start of a cache line. Without memory it returns null pointers and
// only counts, so that one function lays out a kernel's memory and also gives its size.
class Arena {
 public:
  Arena() = default;
  explicit Arena(const Workspace& workspace) : base_(static_cast<std::byte*>(workspace.data)) {}

  template <class T>
  T* take(std::int64_t count) {
    const std::size_t offset = used_;
    used_ += bytes_of<T>(count);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  std::size_t used() const { return used_; }  // bytes

  // Bytes that an array of `count` elements takes.
  template <class T>
  static constexpr std::size_t bytes_of(std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace thalweg
