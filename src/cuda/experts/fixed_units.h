#pragma once

// Activations in fixed point, and their products with packed weights: what the matrix-vector kernels multiply.
//
// Codes are multiplied as integers, four at a time (dp4a), with activations in units of 2^-14 of the largest of 32, in
// two planes of bytes, x = scale (128 high + low). That rounds them to 15 bits.

#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/experts/formats/weights.h"

namespace thalweg::cu {

struct alignas(16) FixedUnit {  // 32 activations as they lie in memory
  std::uint32_t high[8];
  std::uint32_t low[8];
  float scale;
  float sums[2];  // of the two halves, in units of scale
  float unused;   // lanes that read neighbouring units meet different banks

  // Activation i in units of scale; i is a constant.
  __device__ float fixed(int i) const {
    const auto byte = [](std::uint32_t four, int at) {
      return static_cast<float>(static_cast<std::int8_t>(four >> (8 * at)));
    };
    return fmaf(128.0F, byte(high[i / 4], i % 4), byte(low[i / 4], i % 4));
  }
};
static_assert(sizeof(FixedUnit) == 80);
constexpr float kFixedRange = 127 * 128;

// A unit is five pieces of 16 bytes. In shared memory they follow each other; in device memory the first pieces of all
// units of a row come first, then the second ones, so that lanes that read neighbouring units read neighbouring bytes.
constexpr int kUnitPieces = sizeof(FixedUnit) / 16;
__device__ inline FixedUnit read_unit(const uint4* row, int units, int unit) {
  const uint4 high[2] = {row[unit], row[units + unit]};
  const uint4 low[2] = {row[2 * units + unit], row[3 * units + unit]};
  const uint4 rest = row[4 * units + unit];
  return {{high[0].x, high[0].y, high[0].z, high[0].w, high[1].x, high[1].y, high[1].z, high[1].w},
          {low[0].x, low[0].y, low[0].z, low[0].w, low[1].x, low[1].y, low[1].z, low[1].w},
          __uint_as_float(rest.x),
          {__uint_as_float(rest.y), __uint_as_float(rest.z)},
          0.0F};
}

// Four of a unit's activations, from 4 place on; a piece of the unit is `piece_step` pieces behind the one before it.
// Eight neighbouring lanes have a unit; all of `lanes` come here together, and only what is `wanted` is written.
__device__ inline void fix_four(float4 four, unsigned place, unsigned lanes, void* unit, int piece_step,
                                bool wanted = true) {
  const float values[4] = {four.x, four.y, four.z, four.w};
  // As bits, so that infinities and NaN are the largest.
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, __float_as_uint(values[i]) & 0x7FFFFFFFU);
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) {
    largest = max(largest, __shfl_xor_sync(lanes, largest, distance));
  }
  // With an infinity there are no units: it makes the scale NaN, as NaN does.
  const bool finite = largest < 0x7F800000U;
  constexpr float kNothing = 1e-30F;  // below, neither factor would be a normal number
  const float most = __uint_as_float(largest) > kNothing ? __uint_as_float(largest) : 0.0F;
  float reciprocal;
  asm("rcp.approx.f32 %0, %1;" : "=f"(reciprocal) : "f"(most));
  const float scale = most * (1.0F / kFixedRange);
  const float inverse = most > 0.0F ? kFixedRange * reciprocal : 0.0F;
  // A float of 1.5 2^23 and an integer has the integer, rounded, in its lower bits.
  constexpr std::uint32_t kOver = 0x4B400000U;
  std::uint32_t doubled[4];  // 2 (fixed + 64): byte 1 is what is to be `high`, byte 0 twice what `low` is above -64
  std::uint32_t sum_over = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t fixed_over = __float_as_uint(fmaf(values[i], inverse, __uint_as_float(kOver)));
    doubled[i] = 2 * fixed_over + 128;
    sum_over += fixed_over;
  }
  const auto gather = [&](std::uint32_t byte) {
    const std::uint32_t two = byte | (4 + byte) << 4;
    return __byte_perm(__byte_perm(doubled[0], doubled[1], two), __byte_perm(doubled[2], doubled[3], two), 0x5410);
  };
  const std::uint32_t high = gather(1);
  const std::uint32_t above = (gather(0) >> 1 & 0x7F7F7F7FU) ^ 0x40404040U;
  const std::uint32_t low = above | (above & 0x40404040U) << 1;  // less 64, byte by byte
  auto sum = static_cast<std::int32_t>(sum_over - 4 * kOver);
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) sum += __shfl_xor_sync(lanes, sum, distance);
  if (!wanted) return;
  auto* const words = static_cast<std::uint32_t*>(unit);
  const int half = static_cast<int>(place / 4);
  words[half * piece_step * 4 + place % 4] = high;
  words[(2 + half) * piece_step * 4 + place % 4] = low;
  std::uint32_t* const last = words + 4 * piece_step * 4;
  if (place == 0) last[0] = __float_as_uint(finite ? scale : __int_as_float(0x7FC00000));
  if (place % 4 == 0) last[1 + half] = __float_as_uint(static_cast<float>(sum));
}

// Up to kCount of a row of k activations, a multiple of 32, from `first` on, by all kWarps warps of a block; still as
// they lie in memory, so that all reads are in flight at the same time.
template <int kWarps, int kFours>
class RawActivations {
 public:
  static constexpr int kCount = 4 * kFours * kWarps * kWarpSize;

  // The row begins at `offset`.
  __device__ void read(const Elements& x, std::int64_t offset, int first, int k) {
    dtype_ = x.fours ? x.dtype : DType::kF32;
    with_type(x.dtype, [&]<class T>(T) {
      const T* const from = static_cast<const T*>(x.data) + offset;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int at = place(first, i);
        if (at >= k) break;
        if (!x.fours) {
          const auto bits = [&](int j) { return __float_as_uint(to_f32(from[at + j])); };
          raw_[i] = {bits(0), bits(1), bits(2), bits(3)};
        } else if constexpr (sizeof(T) == 4) {
          raw_[i] = *reinterpret_cast<const uint4*>(from + at);
        } else {
          const uint2 two = *reinterpret_cast<const uint2*>(from + at);
          raw_[i] = {two.x, two.y, 0, 0};
        }
      }
    });
  }
  // Makes them fixed point; pieces as of fix_four().
  __device__ void fix(int first, int k, uint4* units, int unit_step, int piece_step) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int at = place(first, i);
      if (at - static_cast<int>(4 * (threadIdx.x % kWarpSize)) >= k) break;  // of the warp
      float4 four;
      with_type(dtype_, [&]<class T>(T) { four = load_four(reinterpret_cast<const T*>(raw_ + i)); });
      const auto from_start = static_cast<unsigned>(at);
      fix_four(four, from_start % 32 / 4, 0xFFFFFFFFU, units + static_cast<int>(from_start / 32) * unit_step,
               piece_step, at < k);
    }
  }

 private:
  __device__ static int place(int first, int i) {
    return first + 4 * (static_cast<int>(threadIdx.x) + i * kWarps * kWarpSize);
  }

  uint4 raw_[kFours];
  DType dtype_;
};

// All from `first` on.
template <int kWarps>
__device__ inline void fix_activations(const Elements& x, std::int64_t offset, int first, int k, uint4* units,
                                       int unit_step, int piece_step) {
  using Raw = RawActivations<kWarps, 2>;
#pragma unroll 1
  for (; first < k; first += Raw::kCount) {
    Raw raw;
    raw.read(x, offset, first, k);
    raw.fix(first, k, units, unit_step, piece_step);
  }
}

__device__ inline int dot_four(std::uint32_t codes, std::uint32_t x, int sum) {
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(codes), "r"(x), "r"(sum));
  return result;
}

// Activations in the order of MXFP4's codes (PackedWeights::mixed).
__device__ inline void mix_halves(std::uint32_t (&plane)[8]) {
  std::uint32_t mixed[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mixed[2 * i] = __byte_perm(plane[i], plane[4 + i], 0x5140);
    mixed[2 * i + 1] = __byte_perm(plane[i], plane[4 + i], 0x7362);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) plane[i] = mixed[i];
}
// As unit_product() takes them, once for all rows that they are multiplied with. Of MXFP4 that is twice the levels,
// plus 12.
template <DType kType>
__device__ inline void order_unit(FixedUnit& x) {
  if constexpr (kType == DType::kMXFP4) {
    mix_halves(x.high);
    mix_halves(x.low);
    x.scale *= 0.5F;
    x.sums[0] = __int_as_float(-12 * static_cast<int>(x.sums[0] + x.sums[1]));
  }
}

// The product of 32 weights and activations, in units of the activations' scale.
template <DType kType>
__device__ inline float unit_product(const PackedWeights<kType>& packed, const FixedUnit& x) {
  if constexpr (kType == DType::kMXFP4) {
    int high = 0;
    int low = __float_as_int(x.sums[0]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      high = dot_four(packed.mixed[i], x.high[i], high);
      low = dot_four(packed.mixed[i], x.low[i], low);
    }
    return packed.scale() * static_cast<float>(128 * high + low);
  } else if constexpr (!PackedWeights<kType>::kCoded) {
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float values[8];
      packed.eight(j, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(values[i], x.fixed(8 * j + i), sum);
    }
    return sum;
  } else {
    int sums[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int high = 0;
      int low = 0;
#pragma unroll
      for (int j = 2 * half; j < 2 * half + 2; ++j) {
        const uint2 codes = packed.codes(j);
        high = dot_four(codes.y, x.high[2 * j + 1], dot_four(codes.x, x.high[2 * j], high));
        low = dot_four(codes.y, x.low[2 * j + 1], dot_four(codes.x, x.low[2 * j], low));
      }
      sums[half] = 128 * high + low;
    }
    const Scaling first = packed.scaling(0);
    if constexpr (PackedWeights<kType>::kGroup == 32) {
      return fmaf(first.scale, static_cast<float>(sums[0] + sums[1]), first.offset * (x.sums[0] + x.sums[1]));
    } else {
      const Scaling second = packed.scaling(1);
      return fmaf(first.scale, static_cast<float>(sums[0]), first.offset * x.sums[0]) +
             fmaf(second.scale, static_cast<float>(sums[1]), second.offset * x.sums[1]);
    }
  }
}

}  // namespace thalweg::cu
