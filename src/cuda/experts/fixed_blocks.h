#pragma once

// Converts activations to fixed point (formats/fixed_products.h).

#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"
#include "cuda/experts/formats/fixed_products.h"

namespace thalweg::cu {

// Converts four activations of a block, from 4 index on. Vectors of the block are `vector_step` vectors apart. Eight
// neighboring lanes convert a block; all of `lanes` call this together, and store only if `write`.
__device__ inline void fix_four(float4 four, unsigned index, unsigned lanes, void* block, int vector_step,
                                bool write = true) {
  const float values[4] = {four.x, four.y, four.z, four.w};
  // As bits, so that infinities and NaN are the largest.
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, __float_as_uint(values[i]) & 0x7FFFFFFFU);
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) {
    largest = max(largest, __shfl_xor_sync(lanes, largest, distance));
  }
  // An infinity makes the scale NaN, as NaN does.
  const bool finite = largest < 0x7F800000U;
  constexpr float kNothing = 1e-30F;  // below this, a factor would not be a normal number
  const float most = __uint_as_float(largest) > kNothing ? __uint_as_float(largest) : 0.0F;
  float reciprocal;
  asm("rcp.approx.f32 %0, %1;" : "=f"(reciprocal) : "f"(most));
  const float scale = most * (1.0F / kFixedRange);
  const float inverse = most > 0.0F ? kFixedRange * reciprocal : 0.0F;
  // 1.5 2^23 + x has x, rounded to an integer, in its lower bits.
  constexpr std::uint32_t kBiasBytes = 0x4B400000U;
  std::uint32_t doubled[4];  // 2 (fixed + 64): byte 1 is `high`, byte 0 is 2 (`low` + 64)
  std::uint32_t sum_over = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t fixed_over = __float_as_uint(fmaf(values[i], inverse, __uint_as_float(kBiasBytes)));
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
  auto sum = static_cast<std::int32_t>(sum_over - 4 * kBiasBytes);
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) sum += __shfl_xor_sync(lanes, sum, distance);
  if (!write) return;
  auto* const words = static_cast<std::uint32_t*>(block);
  const int half = static_cast<int>(index / 4);
  words[half * vector_step * 4 + index % 4] = high;
  words[(2 + half) * vector_step * 4 + index % 4] = low;
  std::uint32_t* const last = words + 4 * vector_step * 4;
  if (index == 0) last[0] = __float_as_uint(finite ? scale : __int_as_float(0x7FC00000));
  if (index % 4 == 0) last[1 + half] = __float_as_uint(static_cast<float>(sum));
}

// Up to kCount activations of a row of k, a multiple of 32, from `first` on, read by all kWarps warps of a block and
// kept unconverted, so that all reads are in flight at the same time.
template <int kWarps, int kFours>
class RawActivations {
 public:
  static constexpr int kCount = 4 * kFours * kWarps * kWarpSize;

  // The row begins at element `offset`.
  __device__ void read(const Elements& x, std::int64_t offset, int first, int k) {
    dtype_ = x.fours ? x.dtype : DType::kF32;
    with_type(x.dtype, [&]<class T>(T) {
      const T* const from = static_cast<const T*>(x.data) + offset;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int at = index(first, i);
        if (at >= k) break;
        if (!x.fours) {
          const auto bits = [&](int j) { return __float_as_uint(to_f32(from[at + j])); };
          raw_[i] = {bits(0), bits(1), bits(2), bits(3)};
        } else {
          raw_[i] = load_raw_four(from + at);
        }
      }
    });
  }
  // Converts them; block_step and vector_step are in vectors.
  __device__ void fix(int first, int k, uint4* blocks, int block_step, int vector_step) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int at = index(first, i);
      if (at - static_cast<int>(4 * (threadIdx.x % kWarpSize)) >= k) break;  // for the whole warp
      float4 four;
      with_type(dtype_, [&]<class T>(T) { four = load_four(reinterpret_cast<const T*>(raw_ + i)); });
      const auto from_start = static_cast<unsigned>(at);
      fix_four(four, from_start % 32 / 4, 0xFFFFFFFFU, blocks + static_cast<int>(from_start / 32) * block_step,
               vector_step, at < k);
    }
  }

 private:
  __device__ static int index(int first, int i) {
    return first + 4 * (static_cast<int>(threadIdx.x) + i * kWarps * kWarpSize);
  }

  uint4 raw_[kFours];
  DType dtype_;
};

// Converts all activations from `first` on.
template <int kWarps>
__device__ inline void fix_activations(const Elements& x, std::int64_t offset, int first, int k, uint4* blocks,
                                       int block_step, int vector_step) {
  using Raw = RawActivations<kWarps, 2>;
#pragma unroll 1
  for (; first < k; first += Raw::kCount) {
    Raw raw;
    raw.read(x, offset, first, k);
    raw.fix(first, k, blocks, block_step, vector_step);
  }
}

}  // namespace thalweg::cu
