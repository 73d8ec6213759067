#pragma once

// Metal's keywords for a translated program. Kernels are compiled twice: with clang's address spaces, to check them (a
// device pointer set to threadgroup memory is an error), and without, to run.

namespace thalweg {
namespace metal {

template <class Pointer>
Pointer argument(void* memory) {
  return (Pointer) reinterpret_cast<unsigned long>(memory);
}
#ifdef THALWEG_CHECK_ADDRESS_SPACES
template <class Pointer>
int* constant_address(Pointer address) {
  return reinterpret_cast<int*>((unsigned long)address);
}
#else
constexpr int* constant_address(int* address) { return address; }
#endif

}  // namespace metal
}  // namespace thalweg

#ifdef THALWEG_CHECK_ADDRESS_SPACES
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant
#define threadgroup
#endif
#define thread
#define kernel static
