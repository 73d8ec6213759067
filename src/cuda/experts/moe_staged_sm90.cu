// Dispatches to the instances of `staged`, a format each.

#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/moe_staged.h"

namespace thalweg::cu::sm90 {

StagedKernels staged_moe_kernels(DType type) {
  return dispatch_block_format(type, [&]<DType kType>() { return staged_kernels<kType>(); });
}

}  // namespace thalweg::cu::sm90
