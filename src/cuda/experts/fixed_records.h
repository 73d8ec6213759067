#pragma once

// Activations in fixed point for products of bytes on the tensor cores (byte_products.h). A row is cut into K tiles of
// 256; a tile is a record, x = scale (128 high + low): 15 bits of the largest of the tile.
//
//   byte 64 s + 8 t + i         `high` of activation 32 s + 16 (i / 4) + 4 t + i % 4 (s < 8, t < 4, i < 8); in
//                               FixedOrder::kEights of 32 s + 8 t + i
//   byte 64 s + 32 + 8 t + i    `low` of the same
//   512 + 16 t + 2 i            f16: an eighth of the sum of the 16 activations from 64 t + 16 (i % 4) on, in units of
//                               scale (i < 4), and the f16 rest of that (4 <= i); the two are exact
//   576                         scale, f32; NaN if an activation is infinite or NaN

#include "cuda/common/mma.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/experts/formats/fixed_products.h"

namespace thalweg::cu {

constexpr int kFixedTileK = 256;
constexpr int kFixedSumsAt = 512;
constexpr int kFixedScaleAt = 576;
constexpr int kFixedRecordBytes = 592;
constexpr float kFixedSumUnit = 8.0F;
// Of a row's records, one after the other.
__host__ __device__ constexpr int fixed_records_bytes(int k_tiles) { return k_tiles * kFixedRecordBytes; }

// Which eight activations of a sub-block lane t of four has: 4 t .. 4 t + 3 and 16 + 4 t .., or 8 t .. 8 t + 7.
enum class FixedOrder { kQuarters, kEights };

// The lane's eight of the 256 activations of a tile: four from first() on and four from first() + kStep on.
template <FixedOrder kOrder = FixedOrder::kQuarters>
struct FixedLane {
  static constexpr int kStep = kOrder == FixedOrder::kQuarters ? 16 : 4;
  int sub_block;
  int t;

  __device__ FixedLane()
      : sub_block(static_cast<int>(threadIdx.x) % kWarpSize / 4), t(static_cast<int>(threadIdx.x) % 4) {}
  __device__ int first() const { return 32 * sub_block + (kOrder == FixedOrder::kQuarters ? 4 : 8) * t; }
};

// The lane's eight activations of a K tile, from element `at` on.
template <FixedOrder kOrder = FixedOrder::kQuarters>
__device__ inline void read_fixed_lane(const Elements& x, std::int64_t at, float (&eight)[8]) {
  using Lane = FixedLane<kOrder>;
  with_type(x.dtype, [&]<class T>(T) {
    const T* const from = static_cast<const T*>(x.data) + at + Lane().first();
    if (x.fours) {
      const float4 a = load_four(from);
      const float4 b = load_four(from + Lane::kStep);
      eight[0] = a.x, eight[1] = a.y, eight[2] = a.z, eight[3] = a.w;
      eight[4] = b.x, eight[5] = b.y, eight[6] = b.z, eight[7] = b.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) eight[i] = to_f32(from[i / 4 * Lane::kStep + i % 4]);
    }
  });
}

// Converts a tile to a record, by a warp. x: what FixedLane says.
template <FixedOrder kOrder = FixedOrder::kQuarters>
__device__ inline void write_fixed_record(const float (&x)[8], std::uint8_t* record) {
  const FixedLane<kOrder> lane;
  // As bits, so that infinities and NaN are the largest.
  std::uint32_t largest = 0;
#pragma unroll
  for (const float value : x) largest = max(largest, __float_as_uint(value) & 0x7FFFFFFFU);
  largest = __reduce_max_sync(0xFFFFFFFFU, largest);
  const bool finite = largest < 0x7F800000U;
  constexpr float kNothing = 1e-30F;  // below this, a factor would not be a normal number
  const float most = finite && __uint_as_float(largest) > kNothing ? __uint_as_float(largest) : 0.0F;
  const float inverse = most > 0.0F ? kFixedRange / most : 0.0F;
  std::uint32_t high[2] = {};
  std::uint32_t low[2] = {};
  int sums[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int fixed = finite ? __float2int_rn(x[i] * inverse) : 0;
    const int upper = (fixed + 64) >> 7;
    high[i / 4] |= (static_cast<std::uint32_t>(upper) & 0xFFU) << (i % 4 * 8);
    low[i / 4] |= (static_cast<std::uint32_t>(fixed - 128 * upper) & 0xFFU) << (i % 4 * 8);
    sums[i / 4] += fixed;
  }
  if constexpr (kOrder == FixedOrder::kQuarters) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      sums[0] += __shfl_xor_sync(0xFFFFFFFFU, sums[0], distance);
      sums[1] += __shfl_xor_sync(0xFFFFFFFFU, sums[1], distance);
    }
  } else {
    sums[0] += sums[1];
    sums[0] += __shfl_xor_sync(0xFFFFFFFFU, sums[0], 1);
    sums[1] = __shfl_xor_sync(0xFFFFFFFFU, sums[0], 2);
  }
  *reinterpret_cast<uint2*>(record + 64 * lane.sub_block + 8 * lane.t) = {high[0], high[1]};
  *reinterpret_cast<uint2*>(record + 64 * lane.sub_block + 32 + 8 * lane.t) = {low[0], low[1]};
  if (lane.t == 0) {
    const float eighths[2] = {static_cast<float>(sums[0]) / kFixedSumUnit, static_cast<float>(sums[1]) / kFixedSumUnit};
    const std::uint32_t heads = pack<__half>(eighths[0], eighths[1]);
    const float2 rounded = unpack<__half>(heads);
    auto* const at =
        reinterpret_cast<std::uint32_t*>(record + kFixedSumsAt + 16 * (lane.sub_block / 2) + 4 * (lane.sub_block % 2));
    at[0] = heads;
    at[2] = pack<__half>(eighths[0] - rounded.x, eighths[1] - rounded.y);
  }
  if (lane.sub_block == 0 && lane.t == 0) {
    *reinterpret_cast<float*>(record + kFixedScaleAt) =
        finite ? most * (1.0F / kFixedRange) : __int_as_float(0x7FC00000);
  }
}

}  // namespace thalweg::cu
