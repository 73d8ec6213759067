// The first launch of moe_ffn for few tokens: the router's logits in f32, and the activations in fixed point.

#include "cuda/device/launch_order.h"
#include "cuda/moe_matvec.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRows = 2;    // of the router, of a block
constexpr int kTokens = 8;  // at a time

struct RouterParameters {
  Elements x, router, shared_router;
  float* logits;
  FixedUnit* x_units;
  int tokens, hidden, experts, all_logits;
};

// Four columns of a row, zeros beyond the end; in two steps, as of single elements (elements.h).
struct RawFour {
  uint4 words;
};
__device__ inline RawFour read_four(const Elements& from, std::int64_t row, int column, int columns) {
  RawFour raw{};
  if (column >= columns) return raw;
  if (!from.fours) {
    raw.words = {from.read(row + column), from.read(row + column + 1), from.read(row + column + 2),
                 from.read(row + column + 3)};
  } else if (from.dtype == DType::kF32) {
    raw.words = *reinterpret_cast<const uint4*>(static_cast<const float*>(from.data) + row + column);
  } else {
    const uint2 two = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(from.data) + row + column);
    raw.words = {two.x & 0xFFFFU, two.x >> 16, two.y & 0xFFFFU, two.y >> 16};
  }
  return raw;
}
__device__ inline float4 convert_four(const Elements& from, const RawFour& raw) {
  return {from.convert(raw.words.x), from.convert(raw.words.y), from.convert(raw.words.z), from.convert(raw.words.w)};
}

// Two rows of the router with all tokens; beyond the rows, the activations of a token.
__global__ void __launch_bounds__(kThreads) moe_router(const __grid_constant__ RouterParameters p) {
  __shared__ float sums[kWarps][kRows * kTokens];
  const int thread = static_cast<int>(threadIdx.x);
  const int row_blocks = (p.all_logits + kRows - 1) / kRows;
  const int first_row = static_cast<int>(blockIdx.x) * kRows;
  const auto matrix_of = [&](int row) -> const Elements& { return row < p.experts ? p.router : p.shared_router; };
  const auto offset_of = [&](int row) { return row < p.experts ? p.router.offset(row) : 0; };
  allow_next_kernel();
  if (static_cast<int>(blockIdx.x) < row_blocks) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = min(first_row + r, p.all_logits - 1);
      const Elements& matrix = matrix_of(row);
      const int bytes = matrix.dtype == DType::kF32 ? 4 : 2;
      prefetch_to_l2(static_cast<const std::uint8_t*>(matrix.data) + offset_of(row) * bytes, p.hidden * bytes, thread,
                     kThreads);
    }
  }
  wait_for_previous_kernel();
  if (static_cast<int>(blockIdx.x) >= row_blocks) {
    const int token = static_cast<int>(blockIdx.x) - row_blocks;
    with_type(p.x.dtype, [&]<class T>(T) {
      fix_activations<kWarps>(static_cast<const T*>(p.x.data) + p.x.offset(token), p.x.fours, p.hidden,
                              p.x_units + token * (p.hidden / 32));
    });
    return;
  }

  for (int first_token = 0; first_token < p.tokens; first_token += kTokens) {
    const int tokens = min(kTokens, p.tokens - first_token);
    float acc[kRows][kTokens] = {};
    for (int column = 4 * thread; column < p.hidden; column += 4 * kThreads) {
      RawFour raw_rows[kRows];
      RawFour raw_x[kTokens];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int row = min(first_row + r, p.all_logits - 1);
        raw_rows[r] = read_four(matrix_of(row), offset_of(row), column, p.hidden);
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (t < tokens) raw_x[t] = read_four(p.x, p.x.offset(first_token + t), column, p.hidden);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 w = convert_four(matrix_of(min(first_row + r, p.all_logits - 1)), raw_rows[r]);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          if (t >= tokens) continue;
          const float4 x = convert_four(p.x, raw_x[t]);
          acc[r][t] = fmaf(w.x, x.x, fmaf(w.y, x.y, fmaf(w.z, x.z, fmaf(w.w, x.w, acc[r][t]))));
        }
      }
    }
    __syncthreads();  // the sums of other tokens have been read
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (t >= tokens) continue;
        const float sum = warp_sum(acc[r][t]);
        if (thread % kWarpSize == 0) sums[thread / kWarpSize][r * kTokens + t] = sum;
      }
    }
    __syncthreads();
    const int row = first_row + thread / kTokens;
    const int token = first_token + thread % kTokens;
    if (thread < kRows * kTokens && row < p.all_logits && token < p.tokens) {
      float sum = 0.0F;
#pragma unroll
      for (const auto& of_warp : sums) sum += of_warp[thread];
      p.logits[token * p.all_logits + row] = sum;
    }
  }
}

}  // namespace

void launch_moe_router(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream) {
  const RouterParameters parameters{p.x,
                                    p.router,
                                    p.shared_router,
                                    p.logits,
                                    p.x_units,
                                    p.sizes.tokens,
                                    p.sizes.hidden,
                                    p.sizes.experts,
                                    p.sizes.logits()};
  const auto blocks = static_cast<unsigned>((p.sizes.logits() + kRows - 1) / kRows + p.sizes.tokens);
  launch_early(moe_router, blocks, kThreads, 0, device, stream, MoeFfnArgs::kName, parameters);
}

}  // namespace thalweg::cu
