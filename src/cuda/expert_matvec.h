#pragma once

// The kernels of one product of matrix and vector, by format: each is instantiated in a file of its own family.

#include "cuda/device/experts.h"

namespace thalweg::cu {

struct MatvecKernel {
  void (*kernel)(ExpertMatmul);
  int shared_bytes;  // beside the activations
};

// kLanes of a warp share a row: 16 or 32.
template <DType kType>
MatvecKernel block_matvec(int lanes);

}  // namespace thalweg::cu

// For a file that includes device/expert_matvec.h.
#define THALWEG_BLOCK_MATVEC(type)                                                                    \
  template <>                                                                                         \
  MatvecKernel block_matvec<DType::type>(int lanes) {                                                 \
    if (lanes == 16) return {block_matvec_kernel<DType::type, 16>, kMatvecRowBytes<DType::type, 16>}; \
    return {block_matvec_kernel<DType::type, 32>, kMatvecRowBytes<DType::type, 32>};                  \
  }
