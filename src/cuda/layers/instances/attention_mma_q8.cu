#include "cuda/layers/attention_mma_kernel.h"

namespace thalweg::cu {

AttentionMmaKernel attention_mma_kernel_q8(int width, int warps) {
  return attention_mma_kernel_of<PackedQ8>(width, warps);
}

}  // namespace thalweg::cu
