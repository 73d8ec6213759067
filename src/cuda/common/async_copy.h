#pragma once

// Asynchronous copies from global to shared memory in pieces of 16 bytes, and the swizzle of tiles in shared memory.

#include <cstdint>

namespace thalweg::cu {

// A tile of rows of 64 16-bit elements (128 bytes) in shared memory, 1024-byte aligned, whose 16-byte pieces are
// permuted within each row so that neither rows nor columns collide in the banks; the "128-byte swizzle" of the tensor
// cores' descriptors. Wider tiles are several of these, one after the other.
constexpr int kTileColumns = 64;
__device__ inline std::uint32_t swizzled(int row, int piece) {
  return static_cast<std::uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4));
}

// 16 bytes; zeros instead if not `valid`, without touching the source.
__device__ inline void copy_16_bytes(std::uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void copy_16_bytes(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// The first `valid` bytes of 16, zeros for the rest; whole addresses on both sides are multiples of 16.
__device__ inline void copy_piece(std::uint32_t shared, const void* global, int valid) {
  const int bytes = valid < 16 ? (valid < 0 ? 0 : valid) : 16;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `kPending` of this thread's groups are under way.
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace thalweg::cu
