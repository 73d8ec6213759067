// The first launch of moe_ffn's `grouped` (grouped.h): the router's logits in f32, and the activations in fixed point.
//
// Roles: a block multiplies four rows of the router with 8 or 16 tokens, its threads divide the columns; after these
// blocks, others convert the activations, a K tile per warp.

#include "cuda/common/pdl.h"
#include "cuda/experts/grouped.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRows = 4;     // of the router, per block
constexpr int kColumns = 8;  // of a thread at a time

// Eight neighbors of a row, from `at` on.
__device__ inline void read_eight(const Elements& matrix, std::int64_t at, float (&eight)[kColumns]) {
  with_type(matrix.dtype, [&]<class T>(T) {
    const T* const from = static_cast<const T*>(matrix.data) + at;
    if (matrix.fours) {
      const float4 a = load_four(from);
      const float4 b = load_four(from + 4);
      eight[0] = a.x, eight[1] = a.y, eight[2] = a.z, eight[3] = a.w;
      eight[4] = b.x, eight[5] = b.y, eight[6] = b.z, eight[7] = b.w;
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) eight[i] = to_f32(from[i]);
    }
  });
}

__device__ inline void read_rows(const GroupedRouter& p, int first_row, int column, float (&rows)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    read_eight(p.router, p.router.offset(min(first_row + r, p.experts - 1)) + column, rows[r]);
  }
}

// Sums values over the warp: each lane has the sums of kCount / 32 values, and returns the index of the first of them.
template <int kCount, int kDistance = kWarpSize / 2>
__device__ inline int sum_scattered(float* values) {
  const bool upper = (threadIdx.x & kDistance) != 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float sent = upper ? values[i] : values[i + kCount / 2];
    values[i] = (upper ? values[i + kCount / 2] : values[i]) + __shfl_xor_sync(0xFFFFFFFFU, sent, kDistance);
  }
  const int first = upper ? kCount / 2 : 0;
  if constexpr (kDistance > 1) return first + sum_scattered<kCount / 2, kDistance / 2>(values);
  return first;
}

__device__ void convert(const GroupedRouter& p, int tile) {
  const int token = tile / p.k_tiles;
  const std::int64_t at = p.x.offset(token) + (tile - token * p.k_tiles) * kFixedTileK;
  float x[8];
  read_fixed_lane(p.x, at, x);
  write_fixed_record(x, p.records + static_cast<std::int64_t>(tile) * kFixedRecordBytes);
}

template <int kTokens>
__global__ void __launch_bounds__(kThreads, 2) grouped_router_kernel(const __grid_constant__ GroupedRouter p) {
  __shared__ float sums[kWarps][kRows * kTokens];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int row_blocks = (p.experts + kRows - 1) / kRows;
  const int token_blocks = (p.tokens + kTokens - 1) / kTokens;
  const int block = static_cast<int>(blockIdx.x);
  const int hidden = p.k_tiles * kFixedTileK;
  pdl_trigger();
  if (block >= row_blocks * token_blocks) {
    const int tile = (block - row_blocks * token_blocks) * kWarps + warp;
    pdl_wait();
    if (tile < p.tokens * p.k_tiles) convert(p, tile);
    return;
  }
  const int first_row = block % row_blocks * kRows;
  const int first_token = block / row_blocks * kTokens;
  int column = kColumns * thread;
  float rows[kRows][kColumns] = {};
  if (column < hidden) read_rows(p, first_row, column, rows);
  pdl_wait();

  float products[kRows * kTokens] = {};  // [kTokens][kRows]
  while (column < hidden) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float x[kColumns];
      read_eight(p.x, p.x.offset(min(first_token + t, p.tokens - 1)) + column, x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          products[t * kRows + r] = fmaf(rows[r][i], x[i], products[t * kRows + r]);
        }
      }
    }
    column += kColumns * kThreads;
    if (column < hidden) read_rows(p, first_row, column, rows);
  }
  const int first = sum_scattered<kRows * kTokens>(products);
#pragma unroll
  for (int i = 0; i < kRows * kTokens / kWarpSize; ++i) sums[warp][first + i] = products[i];
  __syncthreads();
  const int token = first_token + thread / kRows;
  const int row = first_row + thread % kRows;
  if (thread < kRows * kTokens && token < p.tokens && row < p.experts) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += sums[i][thread];
    p.logits[token * p.experts + row] = sum;
  }
}

}  // namespace

void launch_grouped_router(const GroupedRouter& router, const DeviceProperties& device, cudaStream_t stream,
                           std::string_view operation) {
  const auto launch = [&](auto kernel, int tokens) {
    const int blocks = (router.experts + kRows - 1) / kRows * ((router.tokens + tokens - 1) / tokens) +
                       (router.tokens * router.k_tiles + kWarps - 1) / kWarps;
    pdl_launch(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, 0, device, stream, operation, router);
  };
  router.tokens <= 8 ? launch(grouped_router_kernel<8>, 8) : launch(grouped_router_kernel<16>, 16);
}

}  // namespace thalweg::cu
