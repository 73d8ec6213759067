// Must not compile: a pointer to device memory is set to threadgroup memory. tests/CMakeLists.txt looks for the error.

#include <metal_stdlib>

#include "metal/host/address_spaces.h"

inline float first(device const float* x, threadgroup float* scratch) {
#ifdef THALWEG_MIX_UP
  x = scratch;
#endif
  return x[0] + scratch[0];
}
