#pragma once

// Barriers in shared memory (mbarrier), bulk copies that complete on them, and register reallocation between
// warpgroups. Needs compute capability 9.0.

#include <cstdint>

namespace thalweg::cu {

// A barrier in shared memory.
struct Mbarrier {
  std::uint32_t address;

  __device__ void init(std::uint32_t arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
  }
  __device__ void arrive() const { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory"); }
  // Arrives; the phase then also waits for `bytes` bytes of bulk copies.
  __device__ void arrive_expect_tx(std::uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
  }
  // Waits until the phase of this parity is complete.
  __device__ void wait(std::uint32_t parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n"
        "}\n" ::"r"(address),
        "r"(parity)
        : "memory");
  }
};

// The barriers of a ring's stages, one after the other in shared memory.
struct MbarrierArray {
  static constexpr int kBytes = 8;  // of one barrier

  std::uint32_t address;

  __device__ Mbarrier operator[](int stage) const { return {address + static_cast<std::uint32_t>(kBytes * stage)}; }
};

// A ring's stage and the parity of its barriers' phase, which changes with every round.
struct RingStage {
  int index = 0;
  std::uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++index < stages) return;
    index = 0;
    parity ^= 1U;
  }
};

// Makes initialized barriers visible to the copy engine.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Copies `bytes` bytes (a multiple of 16) from global to shared memory by the copy engine. Completes on `barrier`.
__device__ inline void bulk_copy(std::uint32_t shared, const void* global, std::uint32_t bytes, Mbarrier barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier.address)
               : "memory");
}

// The same for data that is not read again soon: L2 evicts it first.
__device__ inline void bulk_copy_evict_first(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                             Mbarrier barrier) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier.address), "l"(policy)
      : "memory");
}

// Makes this thread's writes to shared memory visible to the tensor cores and the copy engine.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Arrives at barrier `id`, 1..15, and waits for `threads` threads of the block, in whole warps.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives without waiting; others of the `threads` threads wait by named_barrier().
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace thalweg::cu
