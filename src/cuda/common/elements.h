#pragma once

// Conversions between f32 and the float dtypes: single elements, and two or four neighbors.

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

// Four neighbors, at an address that is a multiple of their size.
__device__ inline float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ inline void store_four(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
template <class T>
__device__ inline float4 load_four(const T* from) {
  const uint2 raw = *reinterpret_cast<const uint2*>(from);
  const auto element = [](std::uint32_t bits) { return to_f32(T{static_cast<std::uint16_t>(bits)}); };
  return {element(raw.x), element(raw.x >> 16), element(raw.y), element(raw.y >> 16)};
}
// Four elements of a 16-bit type.
template <class T>
__device__ inline uint2 four_to(float4 x) {
  const auto pair = [](float low, float high) {
    return static_cast<std::uint32_t>(from_f32<T>(low).bits) | static_cast<std::uint32_t>(from_f32<T>(high).bits) << 16;
  };
  return {pair(x.x, x.y), pair(x.z, x.w)};
}
template <class T>
__device__ inline void store_four(T* to, float4 x) {
  *reinterpret_cast<uint2*>(to) = four_to<T>(x);
}

// The same for what is not read again soon, which the L2 cache evicts first: without the hint, more data than the cache
// holds, stored in runs of 128 bytes, are written at a quarter of the memory's rate.
__device__ inline void store_four_streaming(float* to, float4 x) { __stcs(reinterpret_cast<float4*>(to), x); }
template <class T>
__device__ inline void store_four_streaming(T* to, float4 x) {
  __stcs(reinterpret_cast<uint2*>(to), four_to<T>(x));
}

// As they are in memory, so that several can be read before the first is used: of 16-bit types two words.
template <class T>
__device__ inline uint4 load_raw_four(const T* from) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const uint4*>(from);
  } else {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    return {two.x, two.y, 0, 0};
  }
}

// Two neighbors, likewise.
__device__ inline float2 load_two(const float* from) { return *reinterpret_cast<const float2*>(from); }
template <class T>
__device__ inline float2 load_two(const T* from) {
  const std::uint32_t raw = *reinterpret_cast<const std::uint32_t*>(from);
  return {to_f32(T{static_cast<std::uint16_t>(raw)}), to_f32(T{static_cast<std::uint16_t>(raw >> 16)})};
}

// Calls body(T{}) for the type of a float dtype. Call it around loops, not in them.
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

}  // namespace thalweg::cu
