#pragma once

#include "cuda/layers/attention.h"

namespace thalweg::cu {

constexpr int kMmaKeys = 64;  // of a tile

using AttentionMmaKernel = void (*)(AttentionCall);

// Head sizes 64, 128 and 256; 4 warps only for 256.
AttentionMmaKernel attention_mma_kernel_bf16(int width, int warps);
AttentionMmaKernel attention_mma_kernel_f16(int width, int warps);
AttentionMmaKernel attention_mma_kernel_q8(int width, int warps);

}  // namespace thalweg::cu
