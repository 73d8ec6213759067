#pragma once

#include <type_traits>

#include "cuda/common/elements.h"

namespace thalweg::cu {

// kCount neighbors as they are in memory. A kernel that reads several before it converts the first keeps all reads in
// flight at the same time.
template <class T, int kCount>
struct Packed {
  static_assert(kCount == 1 || kCount == 4);
  using Bits = std::conditional_t<kCount == 1, T, std::conditional_t<sizeof(T) == 4, float4, uint2>>;
  Bits bits;

  // The address is a multiple of the size.
  __device__ static Packed read(const T* from) { return {*reinterpret_cast<const Bits*>(from)}; }
  __device__ void unpack(float (&to)[kCount]) const {
    if constexpr (kCount == 1) {
      to[0] = to_f32(bits);
    } else {
      const float4 four = load_four(reinterpret_cast<const T*>(&bits));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
  }
};

}  // namespace thalweg::cu
