#pragma once

#include "cuda/layers/attention.h"
#include "cuda/layers/packed_cache.h"

namespace thalweg::cu {

constexpr int kDecodeRows = 16;
constexpr int kDecodeWarps = 4;
constexpr int kDecodeSlots = 3;
constexpr int kCombineWarps = 8;

// Positions of a warp's step: enough bytes under way with narrow heads too.
constexpr int decode_step_keys(int width) { return width == 256 ? 16 : 32; }
// Bytes of a warp's ring of tiles, and of the f16 tile that it unpacks those of a packed cache to.
constexpr int decode_tile_bytes(int width) { return decode_step_keys(width) * width * 2; }
constexpr int decode_slot_bytes(int width, bool packed) {
  return packed ? decode_step_keys(width) * packed_row_bytes(width) : decode_tile_bytes(width);
}
constexpr int decode_warp_bytes(int width, bool packed) {
  return kDecodeSlots * decode_slot_bytes(width, packed) + (packed ? decode_tile_bytes(width) : 0);
}
// Bytes of shared memory of a block: queries, the warps' tiles, and what aligns them.
constexpr int decode_shared_bytes(int width, bool packed) {
  return kDecodeRows * width * 2 + kDecodeWarps * decode_warp_bytes(width, packed) + 1024;
}

using AttentionDecodeKernel = void (*)(AttentionCall);

// Head sizes 64, 128 and 256.
AttentionDecodeKernel attention_decode_kernel_bf16(int width);
AttentionDecodeKernel attention_decode_kernel_f16(int width);
AttentionDecodeKernel attention_decode_kernel_q8(int width);
AttentionDecodeKernel attention_combine_kernel_of(int width);  // of every kernel that splits the context

}  // namespace thalweg::cu
