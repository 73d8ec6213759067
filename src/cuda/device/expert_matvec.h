#pragma once

// Products of one row of activations with the weights of one expert: the kernels for few tokens. f32 arithmetic.

#include "cuda/device/async_copy.h"
#include "cuda/device/experts.h"
#include "cuda/device/launch_order.h"
#include "cuda/device/warp.h"
#include "cuda/device/weights.h"
#include "thalweg/device.h"

namespace thalweg::cu {

constexpr int kMatvecWarps = 8;

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

// ---- block formats

// A warp works on kPasses * 32 / kLanes rows, kLanes lanes on a row, a lane on 32 weights at a time. It copies its rows
// to shared memory with all copies in flight at once, and waits for nobody else; what hides the latency is the other
// warps of the multiprocessor.
template <int kLanes>
struct MatvecTile {
  static constexpr int kPasses = 4;
  static constexpr int kRowsPerPass = kWarpSize / kLanes;
  static constexpr int kRows = kPasses * kRowsPerPass;  // of a warp
  static constexpr int kBlockRows = kRows * kMatvecWarps;
};
// Weights of a row that are worked on between two waits.
constexpr int kMatvecSlice = 4096;
// Activations lie in shared memory as f32, with a gap after each 32, so that lanes 32 apart meet different banks.
constexpr int kUnitPitch = 36;

// Shared memory of a row of a slice: any 16-byte pieces that hold some of it.
__host__ __device__ inline int matvec_row_pitch(int slice_bytes) { return (slice_bytes + 30) / 16 * 16; }

// acc += the product of 32 weights and activations; `sums` are those of the two halves of x.
template <DType kType>
__device__ inline float unit_product(const PackedWeights<kType>& packed, const float (&x)[32], const float (&sums)[2]) {
  using Packed = PackedWeights<kType>;
  float total = 0.0F;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0.0F;
#pragma unroll
    for (int j = 2 * half; j < 2 * half + 2; ++j) {
      const uint2 codes = packed.codes(j);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float code = code_float<Packed::kWideCodes>(i < 4 ? codes.x : codes.y, i % 4);
        if constexpr (Packed::kWideCodes) code -= kCodeOver<true>;
        sum = fmaf(code, x[8 * j + i], sum);
      }
    }
    const Scaling group = packed.scaling(half);
    const float offset = Packed::kWideCodes ? group.offset : fmaf(-kCodeOver<false>, group.scale, group.offset);
    total += fmaf(group.scale, sum, offset * sums[half]);
  }
  return total;
}

template <DType kType, int kLanes>
__global__ void __launch_bounds__(kMatvecWarps* kWarpSize, 3) block_matvec_kernel(ExpertMatmul p) {
  using Tile = MatvecTile<kLanes>;
  constexpr int kWeights = kBlockWeights<kType>;
  constexpr int kBytes = kBlockBytes<kType>;
  constexpr int kParts = kWeights / 32;
  extern __shared__ __align__(16) std::uint8_t shared[];
  wait_for_launch_order();
  MatvecPair pair;
  if (!find_pair(p, static_cast<int>(blockIdx.y), pair)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kBlockRows + warp * Tile::kRows;
  auto* x_shared = reinterpret_cast<float*>(shared);
  const int pitch = matvec_row_pitch(p.matvec_slice / kWeights * kBytes);
  std::uint8_t* rows = shared + p.matvec_slice / 32 * kUnitPitch * 4 + warp * Tile::kRows * pitch;
  const std::uint8_t* weights = p.weights + pair.expert * p.expert_bytes;
  const int row_in_pass = lane / kLanes;
  const int unit_lane = lane % kLanes;
  float acc[Tile::kPasses] = {};

  for (int k0 = 0; k0 < p.k; k0 += p.matvec_slice) {
    const int slice = min(p.matvec_slice, p.k - k0);
    const int slice_bytes = slice / kWeights * kBytes;
    const std::uint8_t* column = weights + static_cast<std::int64_t>(k0 / kWeights) * kBytes;
    // Weights.
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      const std::uint8_t* row = column + static_cast<std::int64_t>(min(first_row + r, p.n - 1)) * p.row_bytes;
      const auto off = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) & 15);
      const std::uint32_t to = shared_address(rows + r * pitch);
      for (int piece = 16 * lane; piece < slice_bytes + off; piece += 16 * kWarpSize) {
        copy_piece(to + static_cast<std::uint32_t>(piece), row - off + piece, slice_bytes + off - piece);
      }
    }
    commit_copies();
    // Activations, while those are under way.
    if (k0 > 0) __syncthreads();
    with_type(p.x.dtype, [&]<class T>(T) {
      const T* from = static_cast<const T*>(p.x.data) + pair.x + k0;
      if (p.x.fours) {
        for (int i = 4 * static_cast<int>(threadIdx.x); i < slice; i += 4 * kMatvecWarps * kWarpSize) {
          store_four(x_shared + i / 32 * kUnitPitch + i % 32, load_four(from + i));
        }
      } else {
        for (int i = static_cast<int>(threadIdx.x); i < slice; i += kMatvecWarps * kWarpSize) {
          x_shared[i / 32 * kUnitPitch + i % 32] = to_f32(from[i]);
        }
      }
    });
    __syncthreads();
    wait_for_copies<0>();
    __syncwarp();
    for (int unit = unit_lane; unit < slice / 32; unit += kLanes) {
      float x[32];
      float sums[2] = {};
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        const float4 four = load_four(x_shared + unit * kUnitPitch + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        sums[i / 16] += (four.x + four.y) + (four.z + four.w);
      }
#pragma unroll
      for (int pass = 0; pass < Tile::kPasses; ++pass) {
        const int r = pass * Tile::kRowsPerPass + row_in_pass;
        const auto row = static_cast<std::int64_t>(min(first_row + r, p.n - 1)) * p.row_bytes;
        const auto off = static_cast<int>(reinterpret_cast<std::uintptr_t>(column + row) & 15);
        const std::uint8_t* block = rows + r * pitch + off + unit / kParts * kBytes;
        acc[pass] += unit_product<kType>(PackedWeights<kType>::read(block, unit % kParts), x, sums);
      }
    }
    __syncwarp();  // before the next slice takes the rows' place
  }

#pragma unroll
  for (int pass = 0; pass < Tile::kPasses; ++pass) {
    const float sum = warp_sum<kLanes>(acc[pass]);
    const int row = first_row + pass * Tile::kRowsPerPass + row_in_pass;
    if (unit_lane == 0 && row < p.n) store_result(p, pair.y + row, row, sum);
  }
}

// ---- F32, F16 and BF16

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
