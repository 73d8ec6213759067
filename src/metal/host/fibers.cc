#include "metal/host/fibers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define THALWEG_ANNOTATE_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define THALWEG_ANNOTATE_FIBERS 1
#endif
#endif
#ifdef THALWEG_ANNOTATE_FIBERS
#include <sanitizer/common_interface_defs.h>
#endif

namespace thalweg::metal {
namespace {

// Notify AddressSanitizer of a switch of stacks.
void before_switch([[maybe_unused]] void** left, [[maybe_unused]] const void* stack,
                   [[maybe_unused]] std::size_t bytes) {
#ifdef THALWEG_ANNOTATE_FIBERS
  __sanitizer_start_switch_fiber(left, stack, bytes);
#endif
}
void after_switch([[maybe_unused]] void* arrived, [[maybe_unused]] const void** from_stack,
                  [[maybe_unused]] std::size_t* from_bytes) {
#ifdef THALWEG_ANNOTATE_FIBERS
  __sanitizer_finish_switch_fiber(arrived, from_stack, from_bytes);
#endif
}

}  // namespace

FiberStacks::FiberStacks() {
  void* memory = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
}

FiberStacks::~FiberStacks() { munmap(memory_, kMaxThreads * kStackBytes); }

void Fiber::start(const FiberStacks& stacks, std::size_t thread, void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  stack_ = stacks.begin(thread);
  self_ = boost::context::detail::make_fcontext(stacks.end(thread), FiberStacks::kStackBytes, &Fiber::enter);
}

void Fiber::enter(boost::context::detail::transfer_t transfer) {
  auto* fiber = static_cast<Fiber*>(transfer.data);
  fiber->scheduler_ = transfer.fctx;
  after_switch(nullptr, &fiber->scheduler_stack_, &fiber->scheduler_stack_bytes_);
  fiber->body_(fiber->argument_);
  std::abort();
}

void Fiber::resume() {
  void* fake_stack = nullptr;
  before_switch(&fake_stack, stack_, FiberStacks::kStackBytes);
  self_ = boost::context::detail::jump_fcontext(self_, this).fctx;
  after_switch(fake_stack, nullptr, nullptr);
}

void Fiber::switch_to_scheduler(bool last) {
  void* fake_stack = nullptr;
  before_switch(last ? nullptr : &fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  scheduler_ = boost::context::detail::jump_fcontext(scheduler_, nullptr).fctx;
  after_switch(fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
}

void Fiber::finish() {
  switch_to_scheduler(true);
  std::abort();
}

}  // namespace thalweg::metal
