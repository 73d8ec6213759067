#pragma once

// Programmatic dependent launch, for kernels that pdl_launch() (launch.h) launches. No-ops below compute
// capability 9.0.

namespace thalweg::cu {

// Lets the next kernel begin when all blocks have called it or ended.
__device__ inline void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernels ahead in the stream have ended. Every block calls it before it accesses memory that they
// write or read: a kernel that does not wait could end before the one ahead of it, and the next would start too early.
__device__ inline void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void pdl_trigger_and_wait() {
  pdl_trigger();
  pdl_wait();
}

// A kernel's place among launches in a row that read the same inputs and nothing of each other. The first waits for
// what is ahead and lets the next one begin afterwards; so the others find the inputs, and wait before they end.
struct PdlOrder {
  bool beside = false;  // the launch ahead is of the same row
  bool leads = false;   // the next one is

  __device__ void begin() const {
    if (!leads) pdl_trigger();
  }
  // Before the inputs are read.
  __device__ void wait() const {
    if (!beside) pdl_wait();
    if (leads) pdl_trigger();
  }
  // All threads call it last.
  __device__ void end() const {
    if (beside) pdl_wait();
  }
};

}  // namespace thalweg::cu
