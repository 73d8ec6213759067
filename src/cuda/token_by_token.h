#pragma once

#include <cuda_runtime.h>

#include "cuda/device/token_by_token.h"

namespace thalweg::cu {

// How a kernel for one K and layout is to be launched.
struct TokenByTokenKernel {
  void (*kernel)(TokenByToken) = nullptr;
  int warp_rows = 0;  // rows of V that a warp takes
};

// Instantiated in a file of its own for each layout, so that they compile side by side.
template <StateLayout kLayout>
TokenByTokenKernel token_by_token_kernel(std::int64_t k);

extern template TokenByTokenKernel token_by_token_kernel<StateLayout::kVK>(std::int64_t k);
extern template TokenByTokenKernel token_by_token_kernel<StateLayout::kKV>(std::int64_t k);

}  // namespace thalweg::cu
