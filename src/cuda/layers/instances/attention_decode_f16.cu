#include "cuda/layers/attention_decode_kernel.h"

namespace thalweg::cu {

AttentionDecodeKernel attention_decode_kernel_f16(int width) { return attention_decode_kernel_of<__half>(width); }

AttentionDecodeKernel attention_combine_kernel_of(int width) {
  if (width == 64) return attention_combine_kernel<64>;
  if (width == 128) return attention_combine_kernel<128>;
  return attention_combine_kernel<256>;
}

}  // namespace thalweg::cu
