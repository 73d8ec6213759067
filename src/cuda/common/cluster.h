#pragma once

// Blocks of a cluster. Needs compute capability 9.0.

#include <cstdint>

namespace thalweg::cu {

__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Of a grid with two-dimensional clusters: the cluster's y in the grid, and the block's y in the cluster.
__device__ inline unsigned cluster_y() {
  unsigned y;
  asm volatile("mov.u32 %0, %%clusterid.y;" : "=r"(y));
  return y;
}
__device__ inline unsigned cluster_place_y() {
  unsigned y;
  asm volatile("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(y));
  return y;
}

// Threads that wait see what a thread wrote before it arrived.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// Orders no memory accesses.
__device__ inline void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Stores to the same offset of another block's shared memory. That block must have begun.
__device__ inline void store_to_block(float* here, unsigned rank, float value) {
  const auto local = static_cast<std::uint32_t>(__cvta_generic_to_shared(here));
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
}

// Loads from the same offset of another block's shared memory.
__device__ inline float load_from_block(const float* here, unsigned rank) {
  const auto local = static_cast<std::uint32_t>(__cvta_generic_to_shared(here));
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}

__device__ inline int load_from_block(const int* here, unsigned rank) {
  return __float_as_int(load_from_block(reinterpret_cast<const float*>(here), rank));
}

// The same for four floats, at a multiple of 16 bytes.
__device__ inline float4 load_four_from_block(const float* here, unsigned rank) {
  const auto local = static_cast<std::uint32_t>(__cvta_generic_to_shared(here));
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  float4 four;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(remote)
               : "memory");
  return four;
}

}  // namespace thalweg::cu
