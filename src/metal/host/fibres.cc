#include "metal/host/fibres.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define THALWEG_ANNOTATE_FIBRES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define THALWEG_ANNOTATE_FIBRES 1
#endif
#endif
#ifdef THALWEG_ANNOTATE_FIBRES
#include <sanitizer/common_interface_defs.h>
#endif

namespace thalweg::metal {
namespace {

// Tells AddressSanitizer that this thread goes on on another stack. `last`: the one it leaves will not be used again.
void before_switch([[maybe_unused]] void** left, [[maybe_unused]] const void* stack,
                   [[maybe_unused]] std::size_t bytes) {
#ifdef THALWEG_ANNOTATE_FIBRES
  __sanitizer_start_switch_fiber(left, stack, bytes);
#endif
}
void after_switch([[maybe_unused]] void* arrived, [[maybe_unused]] const void** from_stack,
                  [[maybe_unused]] std::size_t* from_bytes) {
#ifdef THALWEG_ANNOTATE_FIBRES
  __sanitizer_finish_switch_fiber(arrived, from_stack, from_bytes);
#endif
}

}  // namespace

FibreStacks::FibreStacks() {
  void* memory = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
}

FibreStacks::~FibreStacks() { munmap(memory_, kMaxThreads * kStackBytes); }

void Fibre::start(const FibreStacks& stacks, std::size_t thread, void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  stack_ = stacks.begin(thread);
  self_ = boost::context::detail::make_fcontext(stacks.end(thread), FibreStacks::kStackBytes, &Fibre::enter);
}

void Fibre::enter(boost::context::detail::transfer_t transfer) {
  auto* fibre = static_cast<Fibre*>(transfer.data);
  fibre->scheduler_ = transfer.fctx;
  after_switch(nullptr, &fibre->scheduler_stack_, &fibre->scheduler_stack_bytes_);
  fibre->body_(fibre->argument_);
  std::abort();
}

void Fibre::resume() {
  void* fake_stack = nullptr;
  before_switch(&fake_stack, stack_, FibreStacks::kStackBytes);
  self_ = boost::context::detail::jump_fcontext(self_, this).fctx;
  after_switch(fake_stack, nullptr, nullptr);
}

void Fibre::switch_to_scheduler(bool last) {
  void* fake_stack = nullptr;
  before_switch(last ? nullptr : &fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  scheduler_ = boost::context::detail::jump_fcontext(scheduler_, nullptr).fctx;
  after_switch(fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
}

void Fibre::finish() {
  switch_to_scheduler(true);
  std::abort();
}

}  // namespace thalweg::metal
