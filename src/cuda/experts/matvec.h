#pragma once

// The matrix-vector kernels by format, instantiated in instances/.

#include <algorithm>

#include "cuda/experts/experts.h"
#include "cuda/experts/row_rings.h"

namespace thalweg::cu {

constexpr int kMatvecWarps = 8;
constexpr int kMatvecThreads = kMatvecWarps * kWarpSize;
constexpr int kMatvecBlocks = 2;  // per multiprocessor

// How a matrix is divided between blocks, warps and lanes.
struct MatvecShape {
  int lanes;        // lanes of a warp that share a row
  int step;         // rows that a warp multiplies at a time: 32 / lanes
  int split;        // warps that share a row: a power of two
  int groups;       // groups of `split` warps in a block
  int passes;       // passes of a warp, kPassSteps steps each
  int stage_bytes;  // shared memory of a pass

  // Where the rings of the warps begin in shared memory, after activations and results.
  __host__ __device__ int ring_at(int k_blocks) const {
    return static_cast<int>(sizeof(FixedBlock)) * k_blocks + (4 * split * groups * passes * 2 * step + 15) / 16 * 16;
  }
};

inline int ceil_of(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// How many of `groups` row groups of each of `pairs` a block multiplies: at most `usual`, in as few waves as possible,
// with `resident` blocks on the device at a time.
inline int groups_per_block(std::int64_t groups, std::int64_t pairs, std::int64_t resident, int usual) {
  const std::int64_t waves = ceil_of(pairs * groups, resident * usual);
  return ceil_of(groups, std::max<std::int64_t>(resident * waves / pairs, 1));
}

struct MatvecKernel {
  void (*kernel)(ExpertMatmul, MatvecShape);
  int stages;
};
// bulk: by bulk copies, for rows that begin at multiples of 16 bytes, on compute capability 9.0.
template <DType kType>
MatvecKernel block_matvec(bool bulk);

}  // namespace thalweg::cu

// Instantiates a format; for files that include matvec_kernel.h.
#define THALWEG_BLOCK_MATVEC(type)                                               \
  template <>                                                                    \
  MatvecKernel block_matvec<DType::type>(bool bulk) {                            \
    return {bulk ? block_matvec_kernel<DType::type, BulkCopyRing<DType::type>>   \
                 : block_matvec_kernel<DType::type, AsyncCopyRing<DType::type>>, \
            kMatvecStages<DType::type>};                                         \
  }
