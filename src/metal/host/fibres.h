#pragma once

// One fibre for each thread of a threadgroup.

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>

namespace thalweg::metal {

// Stacks of kMaxThreads fibres in one piece of memory.
class FibreStacks {
 public:
  static constexpr std::size_t kMaxThreads = 1024;
  static constexpr std::size_t kStackBytes = std::size_t{64} << 10;

  FibreStacks();
  FibreStacks(const FibreStacks&) = delete;
  FibreStacks& operator=(const FibreStacks&) = delete;
  ~FibreStacks();

  std::byte* begin(std::size_t thread) const { return memory_ + thread * kStackBytes; }
  std::byte* end(std::size_t thread) const { return memory_ + (thread + 1) * kStackBytes; }

 private:
  std::byte* memory_;
};

// Control passes between the scheduler, which runs on its caller's stack, and the fibres. A fibre that is not resumed
// again is simply forgotten: kernels own nothing.
class Fibre {
 public:
  // `body(argument)` must not return: it ends in finish().
  void start(const FibreStacks& stacks, std::size_t thread, void (*body)(void*), void* argument);

  // Scheduler: runs the fibre until it gives way or finishes.
  void resume();
  // Fibre: back to the scheduler, which may resume it.
  void give_way() { switch_to_scheduler(false); }
  // Fibre: back to the scheduler for good.
  [[noreturn]] void finish();

 private:
  static void enter(boost::context::detail::transfer_t transfer);
  void switch_to_scheduler(bool last);

  boost::context::detail::fcontext_t self_ = nullptr;
  boost::context::detail::fcontext_t scheduler_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  const void* stack_ = nullptr;
  // What AddressSanitizer wants to know about the scheduler's stack.
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
};

}  // namespace thalweg::metal
