#pragma once

// Two neighbouring elements at once.

#include "cuda/common/elements.h"

namespace thalweg::cu {

// At an address that is a multiple of their size.
__device__ inline float2 load_two(const float* from) { return *reinterpret_cast<const float2*>(from); }
template <class T>
__device__ inline float2 load_two(const T* from) {
  const std::uint32_t raw = *reinterpret_cast<const std::uint32_t*>(from);
  return {to_f32(T{static_cast<std::uint16_t>(raw)}), to_f32(T{static_cast<std::uint16_t>(raw >> 16)})};
}

}  // namespace thalweg::cu
