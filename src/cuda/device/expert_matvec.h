#pragma once

// Products of one row of activations with the weights of one expert: the kernels for few tokens.

#include "cuda/device/async_copy.h"
#include "cuda/device/experts.h"
#include "cuda/device/fixed_units.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/row_copies.h"
#include "cuda/device/warp.h"
#include "cuda/device/weights.h"
#include "thalweg/device.h"

namespace thalweg::cu {

constexpr int kMatvecWarps = 8;

// ---- block formats

// A warp works on kPasses * 32 / kLanes rows, kLanes lanes on a row, a lane on 32 weights at a time. It copies its rows
// to shared memory a step ahead of what it works on, and waits for no other warp. A step is up to kStepWeights of each
// of the rows.
template <int kLanes>
struct MatvecTile {
  static constexpr int kPasses = 4;
  static constexpr int kRowsPerPass = kWarpSize / kLanes;
  static constexpr int kRows = kPasses * kRowsPerPass;  // of a warp
  static constexpr int kBlockRows = kRows * kMatvecWarps;
  static constexpr int kStepWeights = 32 * kLanes;
};
constexpr int kMostBlockPairs = 256;  // that a block's tiles belong to

template <DType kType, int kLanes>
using MatvecRows = RowCopies<kType, MatvecTile<kLanes>::kRows, MatvecTile<kLanes>::kStepWeights, false>;

// Shared memory beside the activations.
template <DType kType, int kLanes>
constexpr int kMatvecRowBytes = 2 * kMatvecWarps* MatvecTile<kLanes>::kRows* MatvecRows<kType, kLanes>::kPitch;

template <DType kType, int kLanes>
__global__ void __launch_bounds__(kMatvecWarps* kWarpSize, 3) block_matvec_kernel(ExpertMatmul p) {
  using Tile = MatvecTile<kLanes>;
  using Rows = MatvecRows<kType, kLanes>;
  constexpr int kParts = kBlockWeights<kType> / 32;
  constexpr int kStageBytes = Tile::kRows * Rows::kPitch;
  extern __shared__ __align__(16) std::uint8_t shared[];
  __shared__ int experts[kMostBlockPairs];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int row_in_pass = lane / kLanes;
  const int unit_lane = lane % kLanes;
  std::uint8_t* own = shared + 2 * warp * kStageBytes;
  auto* x_units = reinterpret_cast<FixedUnit*>(shared + kMatvecRowBytes<kType, kLanes>);

  // The block's tiles of rows, neighbouring ones: mostly of one pair.
  const int row_tiles = (p.n + Tile::kBlockRows - 1) / Tile::kBlockRows;
  const std::int64_t tiles = static_cast<std::int64_t>(p.ids.pairs) * row_tiles;
  const auto first_tile = static_cast<int>(tiles * blockIdx.x / gridDim.x);
  const auto last_tile = static_cast<int>(tiles * (blockIdx.x + 1) / gridDim.x);
  const int first_pair = first_tile / row_tiles;
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int i = thread; i <= (last_tile - 1) / row_tiles - first_pair; i += kMatvecWarps * kWarpSize) {
    experts[i] = p.ids.of(first_pair + i);
    if (experts[i] < 0 && p.ids.fault != nullptr) atomicOr(p.ids.fault, static_cast<std::int32_t>(kFaultExpertIds));
  }
  __syncthreads();

  const int steps = (p.k + Tile::kStepWeights - 1) / Tile::kStepWeights;  // of a tile
  int steps_left = (last_tile - first_tile) * steps;                      // to be copied
  // What is copied next: a step of a tile of a pair.
  int next_pair = 0;  // from the first
  int next_tile = first_tile - first_pair * row_tiles;
  int next_step = 0;
  int next_stage = 0;
  Rows rows;
  rows.begin(p.weights + max(experts[0], 0) * p.expert_bytes, p.row_bytes, p.n, p.k, lane);
  const auto copy_next = [&] {
    if (steps_left > 0 && experts[next_pair] >= 0) {
      rows.copy(next_tile * Tile::kBlockRows + warp * Tile::kRows, next_step, next_step == steps - 1,
                shared_address(own + next_stage * kStageBytes), lane);
    }
    commit_copies();
    next_stage ^= 1;
    if (--steps_left <= 0 || ++next_step < steps) return;
    next_step = 0;
    if (++next_tile < row_tiles) return;
    next_tile = 0;
    ++next_pair;
    rows.move_to(p.weights + max(experts[next_pair], 0) * p.expert_bytes);
  };

  copy_next();
  float acc[Tile::kPasses] = {};
  int stage_index = 0;
  int row_tile = first_tile - first_pair * row_tiles;
  int pair = first_pair;
  Rows own_rows = rows;  // of the pair that is worked on
  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int token = pair / p.ids.slots;
    const int slot = pair - token * p.ids.slots;
    const int expert = experts[pair - first_pair];
    if (tile == first_tile || row_tile == 0) {  // the same for all warps
      own_rows.move_to(p.weights + max(expert, 0) * p.expert_bytes);
      __syncthreads();
      with_type(p.x.dtype, [&]<class T>(T) {
        const T* from = static_cast<const T*>(p.x.data) + p.x.offset(token, p.x_per_slot ? slot : 0);
        fix_activations<kMatvecWarps>(from, p.x.fours, p.k, reinterpret_cast<uint4*>(x_units), kUnitPieces, 1);
      });
      __syncthreads();
    }
    const int first_row = row_tile * Tile::kBlockRows + warp * Tile::kRows;
    for (int step = 0; step < steps; ++step) {
      __syncwarp();  // the other stage has been worked on
      copy_next();
      wait_for_copies<1>();
      __syncwarp();
      const int unit = step * kLanes + unit_lane;
      if (expert >= 0 && 32 * unit < p.k) {
        const FixedUnit x = x_units[unit];
        const std::uint8_t* stage = own + stage_index * kStageBytes + unit_lane / kParts * kBlockBytes<kType>;
#pragma unroll
        for (int pass = 0; pass < Tile::kPasses; ++pass) {
          const int r = pass * Tile::kRowsPerPass + row_in_pass;
          const std::uint8_t* block = stage + r * Rows::kPitch + own_rows.off(first_row + r, step);
          const auto packed = PackedWeights<kType>::read(block, unit_lane % kParts);
          acc[pass] = fmaf(x.scale, unit_product<kType>(packed, x), acc[pass]);
        }
      }
      stage_index ^= 1;
    }
    const std::int64_t y = p.y.offset(token, slot);
#pragma unroll
    for (int pass = 0; pass < Tile::kPasses; ++pass) {
      const float sum = warp_sum<kLanes>(acc[pass]);
      const int row = first_row + pass * Tile::kRowsPerPass + row_in_pass;
      if (expert >= 0 && unit_lane == 0 && row < p.n) store_result(p, y + row, row, sum);
      acc[pass] = 0.0F;
    }
    if (++row_tile < row_tiles) continue;
    row_tile = 0;
    ++pair;
  }
}

// ---- F32, F16 and BF16

// The row of activations of a pair, and where its results go; false for a pair without an expert.
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
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.ids.fault != nullptr) {
    atomicOr(p.ids.fault, static_cast<std::int32_t>(kFaultExpertIds));
  }
  return false;
}

// A warp works on kPlainRows rows; a lane reads 16 bytes of each at a time, or single elements where rows are not
// aligned for that.
constexpr int kPlainRows = 4;
constexpr int kPlainBlockRows = kPlainRows * kMatvecWarps;

template <class T, bool kAligned>
__global__ void __launch_bounds__(kMatvecWarps* kWarpSize) plain_matvec_kernel(ExpertMatmul p) {
  constexpr int kStep = kAligned ? 16 / static_cast<int>(sizeof(T)) : 1;
  wait_for_launch_order();
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
}

}  // namespace thalweg::cu
