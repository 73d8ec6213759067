#include "cuda/layers/attention_decode_kernel.h"

namespace thalweg::cu {

AttentionDecodeKernel attention_decode_kernel_bf16(int width) {
  return attention_decode_kernel_of<__nv_bfloat16>(width);
}

}  // namespace thalweg::cu
