#include "cuda/layers/attention_mma_kernel.h"

namespace thalweg::cu {

AttentionMmaKernel attention_mma_kernel_f16(int width, int warps) {
  return attention_mma_kernel_of<__half>(width, warps);
}

}  // namespace thalweg::cu
