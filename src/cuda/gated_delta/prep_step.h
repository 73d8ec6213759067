#pragma once

#include <cuda_runtime.h>

#include "cuda/gated_delta/prep_step_kernel.h"

namespace thalweg::cu {

// The kernel for one K and layout.
struct PrepStepKernel {
  void (*kernel)(PrepStep) = nullptr;
  int warp_rows = 0;  // rows of V of a warp
};

// Single blocks, for every architecture, and clusters, for compute capability 9.0 (null in a build without it). Each
// layout has files of its own, which compile in parallel.
PrepStepKernel prep_step_kernel_vk(std::int64_t k);
PrepStepKernel prep_step_kernel_kv(std::int64_t k);
PrepStepKernel prep_step_cluster_kernel_vk(std::int64_t k);
PrepStepKernel prep_step_cluster_kernel_kv(std::int64_t k);

template <StateLayout kLayout, bool kCluster>
PrepStepKernel instantiate_prep_step(std::int64_t k) {
  switch (k) {
    case 16:
      return {prep_step<16, kLayout, kCluster>, StateTile<16, kLayout>::kWarpV};
    case 32:
      return {prep_step<32, kLayout, kCluster>, StateTile<32, kLayout>::kWarpV};
    case 64:
      return {prep_step<64, kLayout, kCluster>, StateTile<64, kLayout>::kWarpV};
    case 96:
      return {prep_step<96, kLayout, kCluster>, StateTile<96, kLayout>::kWarpV};
    case 128:
      return {prep_step<128, kLayout, kCluster>, StateTile<128, kLayout>::kWarpV};
    case 192:
      return {prep_step<192, kLayout, kCluster>, StateTile<192, kLayout>::kWarpV};
    default:
      return {prep_step<256, kLayout, kCluster>, StateTile<256, kLayout>::kWarpV};
  }
}

}  // namespace thalweg::cu
