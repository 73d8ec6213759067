// Router logits with the accuracy of f32 on the tensor cores: each operand is the sum of three bf16 terms, and the six
// products that count in f32 are added. A block computes 64 tokens by 64 experts of one split of the columns.

#include <algorithm>

#include "cuda/common/mma.h"
#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/experts/routing.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;   // tokens and experts of a block
constexpr int kDepth = 32;  // columns at a time
constexpr int kPitch = 40;  // of a row in shared memory: eight rows are in different banks
constexpr int kTerms = 3;
constexpr int kEach = kTile * kDepth / kThreads;

struct RouterProduct {
  Elements x, router;
  float* logits;
  std::int64_t tokens;
  int experts;
  int columns;
  int split_columns;  // a multiple of kDepth
};

struct Planes {
  std::uint16_t rows[kTerms][kTile * kPitch];
};

// Loads 64 rows and 32 columns of a matrix; zeros outside.
__device__ void load(const Elements& matrix, std::int64_t first_row, std::int64_t rows, int first, int end,
                     std::uint32_t (&bits)[kEach]) {
  const int column = first + static_cast<int>(threadIdx.x) % kDepth;
  const std::int64_t row = first_row + static_cast<int>(threadIdx.x) / kDepth;
  const std::int64_t at = matrix.offset(row) + column;
  const auto read = [&](const auto* data) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      constexpr int kStep = kThreads / kDepth;
      bits[i] = row + i * kStep < rows && column < end ? data[at + i * matrix.offset(kStep)] : 0;
    }
  };
  if (matrix.dtype == DType::kF32) {
    read(static_cast<const std::uint32_t*>(matrix.data));
  } else {
    read(static_cast<const std::uint16_t*>(matrix.data));
  }
}

__device__ void split(const Elements& matrix, const std::uint32_t (&bits)[kEach], Planes& planes) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    float rest = matrix.convert(bits[i]);
#pragma unroll
    for (int plane = 0; plane < kTerms; ++plane) {
      const Bf16 split = from_f32<Bf16>(rest);
      planes.rows[plane][at / kDepth * kPitch + at % kDepth] = split.bits;
      rest -= to_f32(split);
    }
  }
}

__global__ void __launch_bounds__(kThreads) router_logits(const __grid_constant__ RouterProduct p) {
  __shared__ __align__(16) Planes x;
  __shared__ __align__(16) Planes router;
  pdl_trigger_and_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first_token = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int first_expert = static_cast<int>(blockIdx.y) * kTile;
  const int first = static_cast<int>(blockIdx.z) * p.split_columns;
  const int end = min(p.columns, first + p.split_columns);
  // A warp computes 32 tokens by 32 experts.
  const int row = warp / 2 * 32 + lane % 16;
  const int expert = warp % 2 * 32 + lane / 16 * 8 + lane % 8;
  const std::uint32_t x_at = shared_address(x.rows[0]) + static_cast<std::uint32_t>(2 * (row * kPitch + lane / 16 * 8));
  const std::uint32_t router_at =
      shared_address(router.rows[0]) + static_cast<std::uint32_t>(2 * (expert * kPitch + lane / 8 % 2 * 8));
  constexpr std::uint32_t kPlaneBytes = 2 * kTile * kPitch;

  float sum[2][4][4] = {};
  std::uint32_t x_bits[kEach];
  std::uint32_t router_bits[kEach];
  load(p.x, first_token, p.tokens, first, end, x_bits);
  load(p.router, first_expert, p.experts, first, end, router_bits);
  for (int column = first; column < end; column += kDepth) {
    __syncthreads();
    split(p.x, x_bits, x);
    split(p.router, router_bits, router);
    __syncthreads();
    load(p.x, first_token, p.tokens, column + kDepth, end, x_bits);
    load(p.router, first_expert, p.experts, column + kDepth, end, router_bits);
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      std::uint32_t a[kTerms][2][4];
      std::uint32_t b[kTerms][2][4];
#pragma unroll
      for (int plane = 0; plane < kTerms; ++plane) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t offset =
              plane * kPlaneBytes + static_cast<std::uint32_t>(2 * (i * 16 * kPitch + step * 16));
          load_blocks(a[plane][i], x_at + offset);
          load_blocks(b[plane][i], router_at + offset);
        }
      }
      // The small products first.
#pragma unroll
      for (int order = kTerms - 1; order >= 0; --order) {
#pragma unroll
        for (int of_x = 0; of_x <= order; ++of_x) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const std::uint32_t* pair = b[order - of_x][j / 2] + j % 2 * 2;
              multiply_add<__nv_bfloat16>(sum[i][j], a[of_x][i], pair[0], pair[1]);
            }
          }
        }
      }
    }
  }
  float* const logits = p.logits + static_cast<std::int64_t>(blockIdx.z) * p.tokens * p.experts;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const std::int64_t token = first_token + warp / 2 * 32 + i * 16 + at / 2 * 8 + lane / 4;
        const int e = first_expert + warp % 2 * 32 + j * 8 + lane % 4 * 2 + at % 2;
        if (token < p.tokens && e < p.experts) logits[token * p.experts + e] = sum[i][j][at];
      }
    }
  }
}

int split_columns(std::int64_t columns, int splits) {
  return static_cast<int>((columns + splits * std::int64_t{kDepth} - 1) / (splits * std::int64_t{kDepth}) * kDepth);
}

}  // namespace

int router_splits(std::int64_t tokens, std::int64_t experts, std::int64_t columns, int multiprocessors) {
  const std::int64_t blocks = std::max<std::int64_t>((tokens + kTile - 1) / kTile * ((experts + kTile - 1) / kTile), 1);
  constexpr std::int64_t kMostSplits = 16;  // all splits are read again
  const std::int64_t most = std::clamp<std::int64_t>(columns / (2 * kDepth), 1, kMostSplits);
  const std::int64_t wanted = std::clamp<std::int64_t>(2 * multiprocessors / blocks, 1, most);
  // No split may be empty.
  const std::int64_t each = split_columns(columns, static_cast<int>(wanted));
  return static_cast<int>((columns + each - 1) / each);
}

void launch_router_logits(const ConstTensor& x, const ConstTensor& router, float* logits, int splits,
                          const DeviceProperties& device, cudaStream_t stream, std::string_view operation) {
  if (x.dim(0) == 0) return;
  RouterProduct p{};
  p.x = elements(x);
  p.router = elements(router);
  p.logits = logits;
  p.tokens = x.dim(0);
  p.experts = static_cast<int>(router.dim(0));
  p.columns = static_cast<int>(x.dim(1));
  p.split_columns = split_columns(p.columns, splits);
  const dim3 grid(static_cast<unsigned>((p.tokens + kTile - 1) / kTile),
                  static_cast<unsigned>((p.experts + kTile - 1) / kTile), static_cast<unsigned>(splits));
  pdl_launch(router_logits, grid, kThreads, 0, device, stream, operation, p);
}

}  // namespace thalweg::cu
