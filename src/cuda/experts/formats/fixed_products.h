#pragma once

// Products of packed weights with activations in fixed point, for the matrix-vector kernels.
//
// Codes are multiplied as integers, four at a time (dp4a), with activations in units of 2^-14 of the largest of 32, in
// two planes of bytes, x = scale (128 high + low). That rounds activations to 15 bits.

#include "cuda/common/elements.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

struct alignas(16) FixedBlock {  // 32 activations
  std::uint32_t high[8];
  std::uint32_t low[8];
  float scale;
  float sums[2];  // of the two halves, in units of scale
  float unused;   // so that lanes that read neighboring blocks access different banks

  // Activation i in units of scale; i is a constant.
  __device__ float fixed(int i) const {
    const auto byte = [](std::uint32_t four, int at) {
      return static_cast<float>(static_cast<std::int8_t>(four >> (8 * at)));
    };
    return fmaf(128.0F, byte(high[i / 4], i % 4), byte(low[i / 4], i % 4));
  }
};
static_assert(sizeof(FixedBlock) == 80);
constexpr float kFixedRange = 127 * 128;

// A block is five vectors of 16 bytes. In shared memory they follow each other. In device memory the first vectors of
// all blocks of a row come first, then the second ones, so that lanes that read neighboring blocks read neighboring
// bytes.
constexpr int kFixedBlockVectors = sizeof(FixedBlock) / 16;
__device__ inline FixedBlock read_fixed_block(const uint4* row, int blocks, int block) {
  const uint4 high[2] = {row[block], row[blocks + block]};
  const uint4 low[2] = {row[2 * blocks + block], row[3 * blocks + block]};
  const uint4 rest = row[4 * blocks + block];
  return {{high[0].x, high[0].y, high[0].z, high[0].w, high[1].x, high[1].y, high[1].z, high[1].w},
          {low[0].x, low[0].y, low[0].z, low[0].w, low[1].x, low[1].y, low[1].z, low[1].w},
          __uint_as_float(rest.x),
          {__uint_as_float(rest.y), __uint_as_float(rest.z)},
          0.0F};
}

__device__ inline int dot_four(std::uint32_t codes, std::uint32_t x, int sum) {
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(codes), "r"(x), "r"(sum));
  return result;
}

// Orders activations as block_product() reads them, once for all rows that they are multiplied with.
template <DType kType>
__device__ inline void order_block(FixedBlock&) {}

// The product of 32 weights and activations, in units of the activations' scale.
template <DType kType>
__device__ inline float block_product(const PackedWeights<kType>& packed, const FixedBlock& x) {
  if constexpr (!PackedWeights<kType>::kCoded) {
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

// Two times 32 weights of a row, still packed; `sub_block` is the index of the first in its block.
template <DType kType>
struct PackedPair {
  PackedWeights<kType> even;
  PackedWeights<kType> odd;

  __device__ static PackedPair read(const std::uint8_t* first, const std::uint8_t* second, int sub_block) {
    return {PackedWeights<kType>::read(first, sub_block),
            PackedWeights<kType>::read(second, kBlockWeights<kType> == 256 ? sub_block + 1 : sub_block)};
  }
  __device__ float product(int, const FixedBlock& even_x, const FixedBlock& odd_x) const {
    return fmaf(even_x.scale, block_product<kType>(even, even_x), odd_x.scale * block_product<kType>(odd, odd_x));
  }
};

}  // namespace thalweg::cu
