// Copies memory in the order of a stream, or clears it where there is no other. Thread: four words.

#include "metal/kernels/parameters_layers.h"

#include "metal/kernels/common.h"

[[max_total_threads_per_threadgroup(128)]] kernel void copy_words(constant CopyParameters& p [[buffer(0)]],
                                                                  device const void* from [[buffer(1)]],
                                                                  device void* to [[buffer(2)]],
                                                                  uint3 group [[threadgroup_position_in_grid]],
                                                                  uint thread_index [[thread_index_in_threadgroup]]) {
  THALWEG_UNROLL
  for (int i = 0; i < kMovedElements; ++i) {
    const int64_t at_word = (int64_t(group.x) * kMovedElements + i) * kMoveThreads + thread_index;
    if (at_word >= p.words) continue;
    if (kWidth == 4) {
      static_cast<device uint*>(to)[at_word] = kHasOther ? static_cast<device const uint*>(from)[at_word] : 0;
      continue;
    }
    // No two threads write to a word.
    THALWEG_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int64_t at = 4 * at_word - p.shift + k;
      if (at < 0 || at >= p.bytes) continue;
      static_cast<device uchar*>(to)[at] = kHasOther ? static_cast<device const uchar*>(from)[at] : 0;
    }
  }
}
