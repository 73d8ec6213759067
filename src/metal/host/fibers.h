#pragma once

// A fiber per thread of a threadgroup.

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>

namespace thalweg::metal {

// Stacks of kMaxThreads fibers, contiguous.
class FiberStacks {
 public:
  static constexpr std::size_t kMaxThreads = 1024;
  static constexpr std::size_t kStackBytes = std::size_t{64} << 10;

  FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;
  ~FiberStacks();

  std::byte* begin(std::size_t thread) const { return memory_ + thread * kStackBytes; }
  std::byte* end(std::size_t thread) const { return memory_ + (thread + 1) * kStackBytes; }

 private:
  std::byte* memory_;
};

// Control passes between the scheduler, which runs on its caller's stack, and the fibers. A suspended fiber may be
// dropped: kernels own no resources.
class Fiber {
 public:
  // `body(argument)` must not return: it ends in finish().
  void start(const FiberStacks& stacks, std::size_t thread, void (*body)(void*), void* argument);

  // Scheduler: runs the fiber until it yields or finishes.
  void resume();
  // Fiber: returns to the scheduler, which may resume it.
  void yield() { switch_to_scheduler(false); }
  // Fiber: returns to the scheduler and ends.
  [[noreturn]] void finish();

 private:
  static void enter(boost::context::detail::transfer_t transfer);
  void switch_to_scheduler(bool last);

  boost::context::detail::fcontext_t self_ = nullptr;
  boost::context::detail::fcontext_t scheduler_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  const void* stack_ = nullptr;
  // The scheduler's stack, for AddressSanitizer.
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
};

}  // namespace thalweg::metal
