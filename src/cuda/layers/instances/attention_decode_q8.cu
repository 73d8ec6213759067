#include "cuda/layers/attention_decode_kernel.h"

namespace thalweg::cu {

AttentionDecodeKernel attention_decode_kernel_q8(int width) { return attention_decode_kernel_of<PackedQ8>(width); }

}  // namespace thalweg::cu
