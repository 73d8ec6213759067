#pragma once

// Tensors whose dtype is known when the kernel runs, and conversions of single elements and of four in a row.

#include <cstdint>

#include "thalweg/dtype.h"

namespace thalweg::cu {

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(Bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }
__device__ inline float to_f32(F16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}

// Rounds to nearest, ties to even.
template <class T>
__device__ T from_f32(float x);
template <>
__device__ inline float from_f32<float>(float x) {
  return x;
}
template <>
__device__ inline Bf16 from_f32<Bf16>(float x) {
  Bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
template <>
__device__ inline F16 from_f32<F16>(float x) {
  F16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}

__device__ inline float round_to_bf16(float x) { return to_f32(from_f32<Bf16>(x)); }

// Four elements at an address that is a multiple of their size.
__device__ inline float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ inline void store_four(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
template <class T>
__device__ inline float4 load_four(const T* from) {
  const uint2 raw = *reinterpret_cast<const uint2*>(from);
  const auto element = [](std::uint32_t bits) { return to_f32(T{static_cast<std::uint16_t>(bits)}); };
  return {element(raw.x), element(raw.x >> 16), element(raw.y), element(raw.y >> 16)};
}
template <class T>
__device__ inline void store_four(T* to, float4 x) {
  const auto pair = [](float low, float high) {
    return static_cast<std::uint32_t>(from_f32<T>(low).bits) | static_cast<std::uint32_t>(from_f32<T>(high).bits) << 16;
  };
  *reinterpret_cast<uint2*>(to) = {pair(x.x, x.y), pair(x.z, x.w)};
}

// body(T{}) for the type of a float dtype. To be called around loops, not in them.
#pragma nv_exec_check_disable
template <class Body>
__host__ __device__ inline void with_type(DType dtype, Body body) {
  if (dtype == DType::kF32) {
    body(float{});
  } else if (dtype == DType::kBF16) {
    body(Bf16{});
  } else {
    body(F16{});
  }
}

// A tensor: the strides of all but the innermost, contiguous dimension, in elements. Null data: absent.
template <int kStrides, class Stride>
struct BasicElements {
  void* data = nullptr;
  Stride strides[kStrides] = {};
  DType dtype = DType::kF32;
  bool fours = false;  // four elements at a multiple of four can be read and written at once

  __device__ bool defined() const { return data != nullptr; }

  // Where the innermost row at the leading indices begins, in elements.
  template <class... Index>
  __device__ std::int64_t offset(Index... index) const {
    static_assert(sizeof...(Index) <= kStrides);
    std::int64_t sum = 0;
    int i = 0;
    ((sum += static_cast<std::int64_t>(index) * strides[i++]), ...);
    return sum;
  }

  // One element of the row at `offset`, in two steps: reading several before converting the first keeps the reads in
  // flight at the same time, which a switch over the dtype around both would not.
  __device__ std::uint32_t read(std::int64_t offset) const {
    return dtype == DType::kF32 ? static_cast<const std::uint32_t*>(data)[offset]
                                : static_cast<const std::uint16_t*>(data)[offset];
  }
  __device__ float convert(std::uint32_t bits) const {
    if (dtype == DType::kF16) return to_f32(F16{static_cast<std::uint16_t>(bits)});
    return __uint_as_float(dtype == DType::kBF16 ? bits << 16 : bits);
  }
  __device__ float load(std::int64_t offset) const { return convert(read(offset)); }
  __device__ void store(std::int64_t offset, float x) const {
    with_type(dtype, [&]<class T>(T) { static_cast<T*>(data)[offset] = from_f32<T>(x); });
  }
};

// Of any size, up to rank 5.
using Elements = BasicElements<4, std::int64_t>;
// In few bytes, for kernels of a few microseconds: every 64 bytes of parameters that a kernel reads delay it by 60 ns.
template <int kStrides>
using Compact = BasicElements<kStrides, std::int32_t>;

}  // namespace thalweg::cu
