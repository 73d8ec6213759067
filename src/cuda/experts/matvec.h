#pragma once

// The kernels of one product of matrix and vector, by format: each is instantiated in a file of its own family.

#include <algorithm>

#include "cuda/experts/experts.h"
#include "cuda/experts/row_rings.h"

namespace thalweg::cu {

constexpr int kMatvecWarps = 8;
constexpr int kMatvecThreads = kMatvecWarps * kWarpSize;
constexpr int kMatvecBlocks = 2;  // of a multiprocessor

// How block formats are shared out.
struct MatvecShape {
  int lanes;        // of a warp that share a row
  int step;         // rows of a warp at a time: 32 / lanes
  int split;        // warps that share a row, each with a segment_blocks of it: a power of two
  int groups;       // of such warps, of a block
  int passes;       // of a warp, of kPassSteps steps each
  int stage_bytes;  // of a pass in shared memory

  // Shared memory: activations, results, the warps' rings.
  __host__ __device__ int ring_at(int k_blocks) const {
    return static_cast<int>(sizeof(FixedBlock)) * k_blocks + (4 * split * groups * passes * 2 * step + 15) / 16 * 16;
  }
};

inline int ceil_of(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// How many of the `parts` of each of `pairs` a block takes: as few waves of blocks as leave it no more than `usual`,
// `together` of which are on the device at a time.
inline int rows_per_block(std::int64_t parts, std::int64_t pairs, std::int64_t together, int usual) {
  const std::int64_t waves = ceil_of(pairs * parts, together * usual);
  return ceil_of(parts, std::max<std::int64_t>(together * waves / pairs, 1));
}

struct MatvecKernel {
  void (*kernel)(ExpertMatmul, MatvecShape);
  int stages;
};
// `bulk`: all that is copied at once lies at multiples of 16 bytes, on compute capability 9.0.
template <DType kType>
MatvecKernel block_matvec(bool bulk);

}  // namespace thalweg::cu

// For a file that includes matvec_kernel.h.
#define THALWEG_BLOCK_MATVEC(type)                                               \
  template <>                                                                    \
  MatvecKernel block_matvec<DType::type>(bool bulk) {                            \
    return {bulk ? block_matvec_kernel<DType::type, BulkCopyRing<DType::type>>   \
                 : block_matvec_kernel<DType::type, AsyncCopyRing<DType::type>>, \
            kMatvecStages<DType::type>};                                         \
  }
