#pragma once

// The kernels of `split` by format, instantiated in instances/.

#include "cuda/experts/experts.h"

namespace thalweg::cu {

// How the columns are divided: into K tiles of 256, of which a warp holds `stages` at a time.
struct SplitShape {
  int k_tiles;
  int stages;     // 1 or 2
  bool copies_x;  // rows of activations are bf16 and begin at multiples of 16 bytes
};

struct SplitKernel {
  void (*kernel)(ExpertMatmul, SplitShape);
  int rows;         // weight rows of a block
  int columns;      // rows of activations of a block
  int most_warps;   // of a block
  int stage_bytes;  // of a warp: a K tile of both
};

constexpr int kSplitSumsPadding = 4;  // rows

// The kernel for blocks of 8, 16 or 32 rows of activations. aligned: weight rows begin at multiples of 16 bytes; where
// they do not, there may be no kernel.
template <DType kType>
SplitKernel split_kernel(int columns, bool aligned);

}  // namespace thalweg::cu

// Instantiates a format; for files that include split_kernel.h.
#define THALWEG_SPLIT(type)                                             \
  template <>                                                           \
  SplitKernel split_kernel<DType::type>(int columns, bool aligned) {    \
    if (columns <= 8) return split_kernel_of<DType::type, 1>(aligned);  \
    if (columns <= 16) return split_kernel_of<DType::type, 2>(aligned); \
    return split_kernel_of<DType::type, 4>(aligned);                    \
  }
