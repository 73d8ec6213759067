#pragma once

#include "cuda/layers/attention.h"

namespace thalweg::cu {

constexpr int kDecodeRows = 16;
constexpr int kDecodeWarps = 4;
constexpr int kDecodeSlots = 3;
constexpr int kCombineWarps = 8;

// Positions of a warp's step: enough bytes under way with narrow heads too.
constexpr int decode_step_keys(int width) { return width == 256 ? 16 : 32; }
// Bytes of shared memory of a block: queries, the warps' rings, and what aligns them.
constexpr int decode_shared_bytes(int width) {
  return kDecodeRows * width * 2 + kDecodeWarps * kDecodeSlots * decode_step_keys(width) * width * 2 + 1024;
}

using AttentionDecodeKernel = void (*)(AttentionCall);

// Head sizes 64, 128 and 256.
AttentionDecodeKernel attention_decode_kernel_bf16(int width);
AttentionDecodeKernel attention_decode_kernel_f16(int width);
AttentionDecodeKernel attention_combine_kernel_of(int width);  // of every kernel that splits the context

}  // namespace thalweg::cu
