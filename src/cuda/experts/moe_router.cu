// The first launch of moe_ffn's `matvec` and `staged`: the router's logits in f32, and the activations in fixed point.
//
// Roles: a block multiplies two rows of the router, or the row of the shared expert's gate, with all tokens, one or
// eight at a time; after these blocks, one for each token converts its activations.
// Pipeline: the first columns of the rows are in registers before the wait for the activations.

#include "cuda/common/pdl.h"
#include "cuda/experts/moe_matvec.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRows = 2;                         // of the router, per block
constexpr int kTokens = 8;                       // at a time, if there are several
constexpr int kFours = 2;                        // of a thread, at a time
constexpr int kColumns = 4 * kFours * kThreads;  // at a time

// Four elements of T, unconverted.
template <class T>
__device__ inline uint4 read_four(const T* from, bool fours) {
  if (fours) return load_raw_four(from);
  if constexpr (sizeof(T) == 4) {
    const auto bits = [&](int i) { return __float_as_uint(from[i]); };
    return {bits(0), bits(1), bits(2), bits(3)};
  } else {
    const auto pair = [&](int i) { return from[i].bits | static_cast<std::uint32_t>(from[i + 1].bits) << 16; };
    return {pair(0), pair(2), 0, 0};
  }
}

__device__ inline int column_of(int first, int four) {
  return first + 4 * (static_cast<int>(threadIdx.x) + four * kThreads);
}

// The block's rows, a thread's columns from `first` on; zeros beyond the last.
struct RouterRows {
  uint4 raw[kRows][kFours];

  __device__ void read(const Elements& matrix, int first_row, int rows, int first, int columns) {
    with_type(matrix.dtype, [&]<class Weight>(Weight) {
      const auto* const weights = static_cast<const Weight*>(matrix.data);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kFours; ++i) {
          const int column = column_of(first, i);
          const std::int64_t at = matrix.offset(first_row + min(r, rows - 1)) + column;
          raw[r][i] = column < columns ? read_four(weights + at, matrix.fours) : uint4{};
        }
      }
    });
  }
};

// acc += the products of the rows' columns with kCount tokens; indices beyond the last repeat it.
template <class Weight, class X, int kCount>
__device__ inline void add_products(const Elements& x, const RouterRows& rows, int first, int columns, int first_token,
                                    int tokens, float (&acc)[kRows][kCount]) {
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int column = column_of(first, i);
    if (column >= columns) break;
    uint4 raw[kCount];
#pragma unroll
    for (int t = 0; t < kCount; ++t) {
      const std::int64_t at = x.offset(first_token + min(t, tokens - 1)) + column;
      raw[t] = read_four(static_cast<const X*>(x.data) + at, x.fours);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 row = load_four(reinterpret_cast<const Weight*>(&rows.raw[r][i]));
#pragma unroll
      for (int t = 0; t < kCount; ++t) {
        const float4 four = load_four(reinterpret_cast<const X*>(&raw[t]));
        acc[r][t] = fmaf(row.x, four.x, acc[r][t]);
        acc[r][t] = fmaf(row.y, four.y, acc[r][t]);
        acc[r][t] = fmaf(row.z, four.z, acc[r][t]);
        acc[r][t] = fmaf(row.w, four.w, acc[r][t]);
      }
    }
  }
}

template <int kCount>
__global__ void __launch_bounds__(kThreads) moe_router(const __grid_constant__ MoeRouter p) {
  __shared__ float sums[kWarps][kRows * kCount];
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const int hidden = p.sizes.hidden;
  const int experts = p.sizes.experts;
  const int router_blocks = (experts + kRows - 1) / kRows;
  const int row_blocks = router_blocks + p.sizes.logits() - experts;
  const bool shared = block >= router_blocks;
  const Elements& matrix = shared ? p.shared_router : p.router;
  const int first_row = shared ? 0 : block * kRows;
  const int rows = shared ? 1 : min(kRows, experts - first_row);
  pdl_trigger();
  if (block >= row_blocks) {
    pdl_wait();
    const int token = block - row_blocks;
    fix_activations<kWarps>(p.x, p.x.offset(token), 0, hidden, p.x_blocks + token * kFixedBlockVectors * (hidden / 32),
                            1, hidden / 32);
    return;
  }
  RouterRows weights;
  weights.read(matrix, first_row, rows, 0, hidden);
  pdl_wait();

  for (int first_token = 0; first_token < p.sizes.tokens; first_token += kCount) {
    const int tokens = min(kCount, p.sizes.tokens - first_token);
    float acc[kRows][kCount] = {};
#pragma unroll 1
    for (int first = 0; first < hidden; first += kColumns) {
      if (hidden > kColumns && (first > 0 || first_token > 0)) weights.read(matrix, first_row, rows, first, hidden);
      with_type(matrix.dtype, [&]<class Weight>(Weight) {
        with_type(p.x.dtype,
                  [&]<class X>(X) { add_products<Weight, X>(p.x, weights, first, hidden, first_token, tokens, acc); });
      });
    }
    __syncthreads();  // the sums of other tokens have been read
#pragma unroll
    for (int t = 0; t < kCount; ++t) {
      if (t >= tokens) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = warp_sum(acc[r][t]);
        if (thread % kWarpSize == 0) sums[thread / kWarpSize][r * kCount + t] = sum;
      }
    }
    __syncthreads();
    const int r = thread / kCount;
    const int t = thread % kCount;
    if (r < rows && t < tokens) {
      float sum = 0.0F;
#pragma unroll
      for (const auto& of_warp : sums) sum += of_warp[thread];
      p.logits[(first_token + t) * p.sizes.logits() + (shared ? experts : first_row + r)] = sum;
    }
  }
}

}  // namespace

void launch_moe_router(const MoeRouter& p, const DeviceProperties& device, cudaStream_t stream) {
  const int row_blocks = (p.sizes.experts + kRows - 1) / kRows + p.sizes.logits() - p.sizes.experts;
  const auto blocks = static_cast<unsigned>(row_blocks + p.sizes.tokens);
  const auto kernel = p.sizes.tokens == 1 ? moe_router<1> : moe_router<kTokens>;
  pdl_launch(kernel, blocks, kThreads, 0, device, stream, MoeFfnArgs::kName, p);
}

}  // namespace thalweg::cu
