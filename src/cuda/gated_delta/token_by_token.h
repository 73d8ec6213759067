#pragma once

#include <cuda_runtime.h>

#include "cuda/gated_delta/token_by_token_kernel.h"

namespace thalweg::cu {

// The kernel for one K and layout.
struct TokenByTokenKernel {
  void (*kernel)(TokenByToken) = nullptr;
  int warp_rows = 0;  // rows of V of a warp
};

template <StateLayout kLayout>
TokenByTokenKernel token_by_token_kernel(std::int64_t k) {
  switch (k) {
    case 16:
      return {token_by_token<16, kLayout>, StateTile<16, kLayout>::kWarpV};
    case 32:
      return {token_by_token<32, kLayout>, StateTile<32, kLayout>::kWarpV};
    case 64:
      return {token_by_token<64, kLayout>, StateTile<64, kLayout>::kWarpV};
    case 96:
      return {token_by_token<96, kLayout>, StateTile<96, kLayout>::kWarpV};
    case 128:
      return {token_by_token<128, kLayout>, StateTile<128, kLayout>::kWarpV};
    case 192:
      return {token_by_token<192, kLayout>, StateTile<192, kLayout>::kWarpV};
    default:
      return {token_by_token<256, kLayout>, StateTile<256, kLayout>::kWarpV};
  }
}

// Instantiated in one file per layout, which compile in parallel.
extern template TokenByTokenKernel token_by_token_kernel<StateLayout::kVK>(std::int64_t k);
extern template TokenByTokenKernel token_by_token_kernel<StateLayout::kKV>(std::int64_t k);

}  // namespace thalweg::cu
