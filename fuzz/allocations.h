#pragma once

#include <sanitizer/allocator_interface.h>

#include <cstddef>
#include <cstdint>

namespace thalweg {

// While an object exists, a single allocation of more than the input justifies ends the program, as a crash does.
class AllocationLimit {
 public:
  explicit AllocationLimit(std::size_t input_bytes) {
    [[maybe_unused]] static const int kInstalled = __sanitizer_install_malloc_and_free_hooks(&watch, &ignore);
    limit() = 64 * input_bytes + (std::size_t{1} << 16);
  }
  ~AllocationLimit() { limit() = SIZE_MAX; }
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

 private:
  static std::size_t& limit() {
    static std::size_t bytes = SIZE_MAX;
    return bytes;
  }
  static void watch(const volatile void*, std::size_t bytes) {
    if (bytes > limit()) __builtin_trap();
  }
  static void ignore(const volatile void*) {}
};

}  // namespace thalweg
