#pragma once

// For kernels that launch_early() (launch.h) sends to the device before the one ahead of them in the stream has ended.
// Below compute capability 9.0 there are none, and these do nothing.

namespace thalweg::cu {

// Lets the next such kernel begin once all blocks have come here.
__device__ inline void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until all that came before has ended. To be called by every block, before anything is read or written that
// others work on: a kernel whose blocks did not wait could end before the one ahead of it, and so mislead the next.
__device__ inline void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void wait_for_launch_order() {
  allow_next_kernel();
  wait_for_previous_kernel();
}

}  // namespace thalweg::cu
