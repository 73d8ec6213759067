#pragma once

// Asynchronous copies of up to 16 bytes from global to shared memory, and the swizzle of tiles in shared memory.

#include <cstdint>

namespace thalweg::cu {

// The 128-byte swizzle of the tensor cores' descriptors. A tile has rows of 64 16-bit elements (128 bytes) in shared
// memory, 1024-byte aligned; the 16-byte vectors of a row are permuted so that neither rows nor columns conflict in the
// banks. A wider tile is several of these, one after the other.
constexpr int kTileColumns = 64;
__device__ inline std::uint32_t swizzled(int row, int vector) {
  return static_cast<std::uint32_t>(row * 128 + ((vector ^ (row & 7)) << 4));
}

// Copies 16 bytes; writes zeros if not `valid`, without reading the source.
__device__ inline void copy_16_bytes(std::uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void copy_16_bytes(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// Copies kBytes, 4, 8 or 16, likewise.
template <int kBytes>
__device__ inline void copy_bytes(std::uint32_t shared, const void* global, bool valid) {
  if constexpr (kBytes == 16) {
    copy_16_bytes(shared, global, valid);
  } else {
    const int bytes = valid ? kBytes : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}
// Copies the first `valid` bytes of 16 and writes zeros for the rest. Both addresses are multiples of 16.
__device__ inline void copy_piece(std::uint32_t shared, const void* global, int valid) {
  const int bytes = valid < 16 ? (valid < 0 ? 0 : valid) : 16;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `kPending` of this thread's groups are in flight.
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace thalweg::cu
