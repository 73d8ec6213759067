#include "cuda/layers/attention_mma_kernel.h"

namespace thalweg::cu {

AttentionMmaKernel attention_mma_kernel_bf16(int width, int warps) {
  return attention_mma_kernel_of<__nv_bfloat16>(width, warps);
}

}  // namespace thalweg::cu
