#pragma once

namespace thalweg::cu {

// For kernels that are launched before the one ahead of them in the stream has ended (launch_early() in launch.h): lets
// the next such kernel be launched, and waits until all that came before has ended. To be called before anything is
// read or written.
__device__ inline void wait_for_launch_order() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace thalweg::cu
