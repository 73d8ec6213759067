#pragma once

// Products of one row of activations with the weights of one expert, for few tokens.
//
// Roles: all warps are alike. A warp multiplies some rows of one pair; where rows are long, `split` warps share them,
// each with a segment of the columns.
// Shared memory: the activations in fixed point [FixedBlock], results [split][rows], a ring for each warp.
// Pipeline: each warp fills its ring with raw rows, before the activations are converted, and waits for no other warp.

#include "cuda/common/async_copy.h"
#include "cuda/common/pdl.h"
#include "cuda/common/warp.h"
#include "cuda/experts/experts.h"
#include "cuda/experts/matvec.h"
#include "cuda/experts/row_products.h"
#include "cuda/experts/row_rings.h"

namespace thalweg::cu {

// ---- block formats

// The sums over `lanes` lanes of two values: even lanes get the first, odd lanes the second.
__device__ inline float sum_two(const float (&values)[2], int lanes) {
  return sum_pairs(sum_two_of_pairs(values), lanes);
}

template <DType kType, class Ring>
__global__ void __launch_bounds__(kMatvecThreads, kMatvecBlocks)
    block_matvec_kernel(const __grid_constant__ ExpertMatmul p, const __grid_constant__ MatvecShape shape) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int lane = thread & (shape.lanes - 1);
  const int slot = static_cast<int>(blockIdx.y);
  const int token = static_cast<int>(blockIdx.z);
  const int k_blocks = p.k / 32;
  const int group = warp * shape.groups / kMatvecWarps;
  const int split_index = warp & (shape.split - 1);
  const int pass_rows = kPassSteps * shape.step;
  const int warp_rows = shape.passes * pass_rows;
  const int block_rows = shape.groups * warp_rows;
  const int block_row = static_cast<int>(blockIdx.x) * block_rows;
  const int first_row = block_row + group * warp_rows;
  const int segment_blocks = kLaneBlocks * shape.lanes;
  int first = split_index * segment_blocks;
  const int rows = first < k_blocks ? max(min(p.n - first_row, warp_rows), 0) : 0;
  auto* const x = reinterpret_cast<uint4*>(memory);                                   // [k_blocks]
  auto* const results = reinterpret_cast<float*>(x + kFixedBlockVectors * k_blocks);  // [split][block_rows]
  Ring weights;
  weights.init(memory + shape.ring_at(k_blocks) + warp * kMatvecStages<kType> * shape.stage_bytes, shape.stage_bytes);
  p.order.begin();
  PassRows warp_pass{p.weights + first_row * p.row_bytes, p.row_bytes, rows, shape.lanes, shape.step};
  const bool one_expert = p.ids.data == nullptr;  // whose rows no kernel ahead chooses
  if (one_expert) {
    weights.begin(warp_pass, LaneBlocks<kType>(k_blocks, first, lane, shape.lanes), k_blocks, first);
    if (token == 0 && (shape.passes >= kMatvecStages<kType> || k_blocks > shape.split * segment_blocks)) {
      const int most = max(min(p.n - block_row, block_rows), 0);
      prefetch_to_l2(p.weights + block_row * p.row_bytes, most * p.row_bytes, thread, kMatvecThreads);
    }
  }
  p.order.wait();
  const std::int64_t x_row = p.x.offset(token, p.x_per_slot ? slot : 0);
  RawActivations<kMatvecWarps, 4> raw;
  raw.read(p.x, x_row, 0, p.k);
  if (!one_expert) {
    const int expert = p.ids.of(token, slot);
    if (expert < 0) return report_missing_expert(p.ids, expert);
    warp_pass.from += expert * p.expert_bytes;
    weights.begin(warp_pass, LaneBlocks<kType>(k_blocks, first, lane, shape.lanes), k_blocks, first);
  }
  raw.fix(0, p.k, x, 1, k_blocks);
  fix_activations<kMatvecWarps>(p.x, x_row, raw.kCount, p.k, x, 1, k_blocks);
  __syncthreads();
  float* const own = results + split_index * block_rows + group * warp_rows;
  const int own_row = (lane & 1) * shape.step + warp_pass.row_in_step();
  for (bool again = false; first < k_blocks; again = true) {
    FixedBlock even;
    FixedBlock odd;
    LaneBlocks<kType>(k_blocks, first, lane, shape.lanes).read(x, k_blocks, even, odd);
#pragma unroll 1
    for (int row = 0; row < rows; row += pass_rows) {
      float values[kPassSteps];
      weights.products(even, odd, values);
      const float sum = sum_two(values, shape.lanes);
      if (lane < kPassSteps) own[row + own_row] = again ? own[row + own_row] + sum : sum;
    }
    first += segment_blocks * shape.split;
    if (first < k_blocks)
      weights.begin(warp_pass, LaneBlocks<kType>(k_blocks, first, lane, shape.lanes), k_blocks, first);
  }
  __syncthreads();
  const std::int64_t y = p.y.offset(token, slot);
  for (int row = thread; row < block_rows && block_row + row < p.n; row += kMatvecThreads) {
    float sum = 0.0F;
    for (int i = 0; i < shape.split && i * segment_blocks < k_blocks; ++i) sum += results[i * block_rows + row];
    store_result(p, y + block_row + row, block_row + row, sum);
  }
  p.order.end();
}

// ---- F32, F16 and BF16

// The activations and results of a pair; false if the pair has no expert.
struct MatvecPair {
  int expert;
  std::int64_t x;  // offset in elements
  std::int64_t y;
};
__device__ inline bool find_pair(const ExpertMatmul& p, int pair, MatvecPair& found) {
  const int token = pair / p.ids.slots;
  const int slot = pair - token * p.ids.slots;
  found = {p.ids.of(pair), p.x.offset(token, p.x_per_slot ? slot : 0), p.y.offset(token, slot)};
  if (found.expert >= 0) return true;
  report_missing_expert(p.ids, found.expert);
  return false;
}

// A warp multiplies kPlainRows rows. A lane reads 16 bytes of each at a time, or single elements of unaligned rows.
constexpr int kPlainRows = 4;
constexpr int kPlainBlockRows = kPlainRows * kMatvecWarps;

template <class T, bool kAligned>
__global__ void __launch_bounds__(kMatvecWarps* kWarpSize) plain_matvec_kernel(ExpertMatmul p) {
  constexpr int kStep = kAligned ? 16 / static_cast<int>(sizeof(T)) : 1;
  p.order.begin();
  p.order.wait();
  MatvecPair pair;
  if (!find_pair(p, static_cast<int>(blockIdx.y), pair)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int first_row = static_cast<int>(blockIdx.x) * kPlainBlockRows + warp * kPlainRows;
  const T* rows[kPlainRows];
#pragma unroll
  for (int r = 0; r < kPlainRows; ++r) {
    rows[r] = reinterpret_cast<const T*>(p.weights + pair.expert * p.expert_bytes +
                                         static_cast<std::int64_t>(min(first_row + r, p.n - 1)) * p.row_bytes);
  }
  float acc[kPlainRows] = {};
  with_type(p.x.dtype, [&]<class X>(X) {
    const X* x = static_cast<const X*>(p.x.data) + pair.x;
#pragma unroll 2
    for (int k = lane * kStep; k < p.k; k += kStep * kWarpSize) {
      if constexpr (kAligned) {
        uint4 raw[kPlainRows];
#pragma unroll
        for (int r = 0; r < kPlainRows; ++r) raw[r] = __ldcs(reinterpret_cast<const uint4*>(rows[r] + k));
        float values[kStep];
#pragma unroll
        for (int i = 0; i < kStep; i += 4) {
          const float4 four = load_four(x + k + i);
          values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
        }
#pragma unroll
        for (int r = 0; r < kPlainRows; ++r) {
          const std::uint32_t words[4] = {raw[r].x, raw[r].y, raw[r].z, raw[r].w};
#pragma unroll
          for (int i = 0; i < kStep; ++i) {
            float weight;
            if constexpr (sizeof(T) == 4) {
              weight = __uint_as_float(words[i]);
            } else {
              weight = to_f32(T{static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)))});
            }
            acc[r] = fmaf(weight, values[i], acc[r]);
          }
        }
      } else {
        const float value = to_f32(x[k]);
#pragma unroll
        for (int r = 0; r < kPlainRows; ++r) acc[r] = fmaf(to_f32(rows[r][k]), value, acc[r]);
      }
    }
  });
#pragma unroll
  for (int r = 0; r < kPlainRows; ++r) {
    const float sum = warp_sum(acc[r]);
    if (lane == 0 && first_row + r < p.n) store_result(p, pair.y + first_row + r, first_row + r, sum);
  }
  p.order.end();
}

}  // namespace thalweg::cu
