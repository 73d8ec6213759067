// y[pair,:] = W[expert of pair] x[row of pair,:] in f32.
//
// A block multiplies 32 rows of W, for one pair after the other. Its threads copy 2048 activations at a time to shared
// memory as f32; each of its eight warps multiplies them with four rows, a lane with sub-blocks of 32 weights.

#include "cuda/experts/exact.h"

#include <algorithm>

#include "cuda/common/pdl.h"
#include "cuda/common/warp.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/formats/formats.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kWarpRows = 4;
constexpr int kBlockRows = kWarps * kWarpRows;
constexpr int kSubBlock = 32;          // weights that a lane takes at a time
constexpr int kChunkSubBlocks = 64;    // of activations in shared memory
constexpr int kPitch = kSubBlock + 1;  // of a sub-block in shared memory: lanes read different banks

// The 32 weights of sub-block `sub_block` of a row, times the activations.
template <DType kType>
__device__ float sub_block_product(const std::uint8_t* row, int sub_block, const float* x) {
  using Packed = PackedWeights<kType>;
  constexpr int kPerBlock = kBlockWeights<kType> / kSubBlock;
  const Packed packed =
      Packed::read(row + static_cast<std::int64_t>(sub_block / kPerBlock) * kBlockBytes<kType>, sub_block % kPerBlock);
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < kSubBlock / 8; ++j) {
    const uint2 codes = packed.codes(j);
    const Scaling group = packed.scaling(j / 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t code = (i < 4 ? codes.x : codes.y) >> (8 * (i % 4)) & 0xFFU;
      sum = fmaf(fmaf(static_cast<float>(code), group.scale, group.offset), x[8 * j + i], sum);
    }
  }
  return sum;
}

// A lane's partial sum of a row's product with the `count` activations from `first` on.
template <class Weight>
__device__ float plain_products(const std::uint8_t* row, int first, int count, const float* x, int lane) {
  const auto* weights = reinterpret_cast<const Weight*>(row) + first;
  float sum = 0.0F;
  for (int i = lane; i < count; i += kWarpSize)
    sum = fmaf(to_f32(weights[i]), x[i / kSubBlock * kPitch + i % kSubBlock], sum);
  return sum;
}

template <DType kType>
__device__ float products(const std::uint8_t* row, int first, int count, const float* x, int lane) {
  if constexpr (kType == DType::kF32) {
    return plain_products<float>(row, first, count, x, lane);
  } else if constexpr (kType == DType::kF16) {
    return plain_products<F16>(row, first, count, x, lane);
  } else if constexpr (kType == DType::kBF16) {
    return plain_products<Bf16>(row, first, count, x, lane);
  } else {
    float sum = 0.0F;
    for (int sub_block = lane; sub_block < count / kSubBlock; sub_block += kWarpSize) {
      sum += sub_block_product<kType>(row, first / kSubBlock + sub_block, x + sub_block * kPitch);
    }
    return sum;
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) exact_matmul(const __grid_constant__ ExpertMatmul p) {
  __shared__ float x[kChunkSubBlocks * kPitch];
  pdl_trigger_and_wait();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_row = static_cast<int>(blockIdx.x) * kBlockRows + static_cast<int>(threadIdx.x) / kWarpSize;
  for (int pair = static_cast<int>(blockIdx.y); pair < p.ids.pairs; pair += static_cast<int>(gridDim.y)) {
    const int expert = p.ids.of(pair);
    if (expert < 0) {
      report_missing_expert(p.ids, expert);
      continue;
    }
    const int token = pair / p.ids.slots;
    const int slot = pair - token * p.ids.slots;
    const std::int64_t x_row = p.x.offset(token, p.x_per_slot ? slot : 0);
    float sums[kWarpRows] = {};
    for (int first = 0; first < p.k; first += kChunkSubBlocks * kSubBlock) {
      const int count = min(kChunkSubBlocks * kSubBlock, p.k - first);
      __syncthreads();  // the activations before these have been read
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        x[i / kSubBlock * kPitch + i % kSubBlock] = p.x.load(x_row + first + i);
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) {
        const int row = first_row + i * kWarps;
        if (row >= p.n) break;
        const std::uint8_t* weights = p.weights + expert * p.expert_bytes + row * p.row_bytes;
        sums[i] += products<kType>(weights, first, count, x, lane);
      }
    }
    const std::int64_t y = p.y.offset(token, slot);
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      const int row = first_row + i * kWarps;
      const float sum = warp_sum(sums[i]);
      if (row < p.n && lane == 0) store_result(p, y + row, row, sum);
    }
  }
}

auto exact_kernel(DType type) -> void (*)(ExpertMatmul) {
  void (*kernel)(ExpertMatmul) = nullptr;
  dispatch_format(type, [&]<DType kType>() { kernel = exact_matmul<kType>; });
  return kernel;
}

}  // namespace

std::string exact_supports(const ConstTensor& weight) {
  return is_block_format(weight.dtype) ? aligned_blocks(weight) : std::string();
}

void run_exact(const ExpertMatmul& p, DType weight, const Stream& stream, std::string_view operation) {
  if (p.ids.pairs == 0 || p.n == 0) return;
  constexpr int kMostGridY = 65535;
  const dim3 grid(static_cast<unsigned>((p.n + kBlockRows - 1) / kBlockRows),
                  static_cast<unsigned>(std::min(p.ids.pairs, kMostGridY)));
  pdl_launch(exact_kernel(weight), grid, kThreads, 0, properties(stream.device.index), native(stream), operation, p);
}

}  // namespace thalweg::cu
