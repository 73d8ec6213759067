#pragma once

// Four neighbors of a view of f32, f16 or bf16, at a multiple of four elements.

#include "cuda/common/tensor_view.h"

namespace thalweg::cu {

// As they are in memory, so that reads can precede conversions.
struct RawFour {
  uint4 bits;

  template <class View>
  __device__ static RawFour read(const View& from, std::int64_t offset) {
    if (from.dtype == DType::kF32) {
      return {*reinterpret_cast<const uint4*>(static_cast<const float*>(from.data) + offset)};
    }
    const uint2 half = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(from.data) + offset);
    return {uint4{half.x, half.y, 0, 0}};
  }
  template <class View>
  __device__ void convert(const View& from, float (&x)[4]) const {
    if (from.dtype == DType::kF32) {
      x[0] = __uint_as_float(bits.x), x[1] = __uint_as_float(bits.y);
      x[2] = __uint_as_float(bits.z), x[3] = __uint_as_float(bits.w);
    } else if (from.dtype == DType::kBF16) {
      x[0] = __uint_as_float(bits.x << 16), x[1] = __uint_as_float(bits.x & 0xFFFF0000U);
      x[2] = __uint_as_float(bits.y << 16), x[3] = __uint_as_float(bits.y & 0xFFFF0000U);
    } else {
      x[0] = from.convert(bits.x & 0xFFFFU), x[1] = from.convert(bits.x >> 16);
      x[2] = from.convert(bits.y & 0xFFFFU), x[3] = from.convert(bits.y >> 16);
    }
  }
};

}  // namespace thalweg::cu
