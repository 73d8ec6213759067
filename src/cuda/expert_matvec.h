#pragma once

// The kernels of one product of matrix and vector, by format: each is instantiated in a file of its own family.

#include "cuda/device/experts.h"

namespace thalweg::cu {

using MatvecKernel = void (*)(ExpertMatmul);

// kLanes of a warp share a row: 16 or 32.
template <DType kType>
MatvecKernel block_matvec(int lanes);

}  // namespace thalweg::cu

#define THALWEG_BLOCK_MATVEC(type)                                                                    \
  template <>                                                                                         \
  MatvecKernel block_matvec<DType::type>(int lanes) {                                                 \
    return lanes == 16 ? block_matvec_kernel<DType::type, 16> : block_matvec_kernel<DType::type, 32>; \
  }
