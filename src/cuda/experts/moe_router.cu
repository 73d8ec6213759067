// The first launch of moe_ffn's `matvec`: the router's logits in f32, and the activations in fixed point.
//
// Roles: a block multiplies two rows of the router, or the row of the shared expert's gate, with all tokens, eight at a
// time; after these blocks, one for each token converts its activations.

#include "cuda/common/pdl.h"
#include "cuda/experts/moe_matvec.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRows = 2;    // of the router, per block
constexpr int kTokens = 8;  // at a time

struct RouterParameters {
  Elements x, router, shared_router;
  float* logits;
  uint4* x_blocks;
  int tokens, hidden, experts, all_logits;
};

template <class T>
__device__ inline float4 read_four(const T* row, bool fours, int column) {
  if (fours) return load_four(row + column);
  return {to_f32(row[column]), to_f32(row[column + 1]), to_f32(row[column + 2]), to_f32(row[column + 3])};
}

// Adds the products of `rows` rows with kCount tokens over the thread's columns; indices beyond the last repeat it.
template <int kCount, class Weight, class X>
__device__ inline void add_products(const RouterParameters& p, const Elements& matrix, int first_row, int rows,
                                    int first_token, int tokens, float (&acc)[kRows][kTokens]) {
  const auto* const weights = static_cast<const Weight*>(matrix.data);
  const auto* const x = static_cast<const X*>(p.x.data);
#pragma unroll 2
  for (int column = 4 * static_cast<int>(threadIdx.x); column < p.hidden; column += 4 * kThreads) {
    float4 row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      row[r] = read_four(weights + matrix.offset(first_row + min(r, rows - 1)), matrix.fours, column);
    }
#pragma unroll
    for (int t = 0; t < kCount; ++t) {
      const float4 four = read_four(x + p.x.offset(first_token + min(t, tokens - 1)), p.x.fours, column);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        acc[r][t] = fmaf(row[r].x, four.x, acc[r][t]);
        acc[r][t] = fmaf(row[r].y, four.y, acc[r][t]);
        acc[r][t] = fmaf(row[r].z, four.z, acc[r][t]);
        acc[r][t] = fmaf(row[r].w, four.w, acc[r][t]);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) moe_router(const __grid_constant__ RouterParameters p) {
  __shared__ float sums[kWarps][kRows * kTokens];
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const int router_blocks = (p.experts + kRows - 1) / kRows;
  const int row_blocks = router_blocks + p.all_logits - p.experts;
  const bool shared = block >= router_blocks;
  const Elements& matrix = shared ? p.shared_router : p.router;
  const int first_row = shared ? 0 : block * kRows;
  const int rows = shared ? 1 : min(kRows, p.experts - first_row);
  pdl_trigger();
  if (block < row_blocks) {
    const int bytes = matrix.dtype == DType::kF32 ? 4 : 2;
    for (int r = 0; r < rows; ++r) {
      prefetch_to_l2(static_cast<const std::uint8_t*>(matrix.data) + matrix.offset(first_row + r) * bytes,
                     p.hidden * bytes, thread, kThreads);
    }
  }
  pdl_wait();
  if (block >= row_blocks) {
    const int token = block - row_blocks;
    fix_activations<kWarps>(p.x, p.x.offset(token), 0, p.hidden,
                            p.x_blocks + token * kFixedBlockVectors * (p.hidden / 32), 1, p.hidden / 32);
    return;
  }

  for (int first_token = 0; first_token < p.tokens; first_token += kTokens) {
    const int tokens = min(kTokens, p.tokens - first_token);
    float acc[kRows][kTokens] = {};
    with_type(matrix.dtype, [&]<class Weight>(Weight) {
      with_type(p.x.dtype, [&]<class X>(X) {
        if (tokens == 1) {
          add_products<1, Weight, X>(p, matrix, first_row, rows, first_token, tokens, acc);
        } else {
          add_products<kTokens, Weight, X>(p, matrix, first_row, rows, first_token, tokens, acc);
        }
      });
    });
    __syncthreads();  // the sums of other tokens have been read
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= tokens) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = warp_sum(acc[r][t]);
        if (thread % kWarpSize == 0) sums[thread / kWarpSize][r * kTokens + t] = sum;
      }
    }
    __syncthreads();
    const int r = thread / kTokens;
    const int t = thread % kTokens;
    if (r < rows && t < tokens) {
      float sum = 0.0F;
#pragma unroll
      for (const auto& of_warp : sums) sum += of_warp[thread];
      p.logits[(first_token + t) * p.all_logits + (shared ? p.experts : first_row + r)] = sum;
    }
  }
}

}  // namespace

void launch_moe_router(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream) {
  const RouterParameters parameters{p.x,
                                    p.router,
                                    p.shared_router,
                                    p.logits,
                                    p.x_blocks,
                                    p.sizes.tokens,
                                    p.sizes.hidden,
                                    p.sizes.experts,
                                    p.sizes.logits()};
  const int row_blocks = (p.sizes.experts + kRows - 1) / kRows + p.sizes.logits() - p.sizes.experts;
  const auto blocks = static_cast<unsigned>(row_blocks + p.sizes.tokens);
  pdl_launch(moe_router, blocks, kThreads, 0, device, stream, MoeFfnArgs::kName, parameters);
}

}  // namespace thalweg::cu
