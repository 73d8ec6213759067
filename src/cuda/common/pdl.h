#pragma once

// For kernels that pdl_launch() (launch.h) sends to the device before the one ahead of them in the stream has ended.
// Below compute capability 9.0 there are none, and these do nothing.

namespace thalweg::cu {

// Lets the next such kernel begin once all blocks have come here.
__device__ inline void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until all that came before has ended. To be called by every block, before anything is read or written that
// others work on: a kernel whose blocks did not wait could end before the one ahead of it, and so mislead the next.
__device__ inline void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void pdl_trigger_and_wait() {
  pdl_trigger();
  pdl_wait();
}

}  // namespace thalweg::cu
