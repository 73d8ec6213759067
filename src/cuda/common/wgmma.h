#pragma once

// Warpgroup matrix instructions of Hopper (wgmma). B is in shared memory, A in registers unless stated otherwise.
//
// d[64,N] (+)= a[64,16] b[16,N] by the 128 threads of a warpgroup; warp w holds rows 16w..16w+15, its fragments as in
// mma.h: d[4j..4j+3] is the accumulator of columns 8j..8j+7, a an operand of 16 x 16.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace thalweg::cu {

// The descriptor of B in shared memory, in swizzled tiles with rows of 128 bytes (async_copy.h). `offset` is added to
// the address in bytes; if it is a constant, a loop over products changes only one register.
//   B[k,n] = tile[n][k]: rows are n, k innermost. The next 16 of k are 32 bytes further.
__device__ inline std::uint64_t describe_rows(std::uint32_t address, std::uint32_t offset) {
  constexpr std::uint64_t kSwizzleAndRowGroups = (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32);
  return kSwizzleAndRowGroups | ((address >> 4 | 1U << 16) + (offset >> 4));
}
//   B[k,n] = tile[k][n] (kTransposed): rows are k, n innermost, each 64 columns of n a tile of 64 rows (8192 bytes).
//   The next 16 of k are 2048 bytes further.
__device__ inline std::uint64_t describe_columns(std::uint32_t address, std::uint32_t offset) {
  constexpr std::uint64_t kSwizzleAndRowGroups = (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32);
  return kSwizzleAndRowGroups | ((address >> 4 | std::uint32_t{8192 >> 4} << 16) + (offset >> 4));
}

// Needed before the first wgmma, and after writes to registers that a wgmma reads.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending groups of products are in flight.
template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to registers across an asynchronous instruction that uses them.
template <int kCount>
__device__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// The instruction names each register of d, then its other operands by number: lists of 16, 32, ... names, and the
// instruction for one N.
#define THALWEG_NAMES_0_15 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define THALWEG_NAMES_16_31 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define THALWEG_NAMES_32_47 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define THALWEG_NAMES_48_63 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define THALWEG_NAMES_64_79 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define THALWEG_NAMES_80_95 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define THALWEG_NAMES_96_127                                                                     \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define THALWEG_NAMES_32 THALWEG_NAMES_0_15
#define THALWEG_NAMES_64 THALWEG_NAMES_0_15 ", " THALWEG_NAMES_16_31
#define THALWEG_NAMES_96 THALWEG_NAMES_64 ", " THALWEG_NAMES_32_47
#define THALWEG_NAMES_128 THALWEG_NAMES_96 ", " THALWEG_NAMES_48_63
#define THALWEG_NAMES_192 THALWEG_NAMES_128 ", " THALWEG_NAMES_64_79 ", " THALWEG_NAMES_80_95
#define THALWEG_NAMES_256 THALWEG_NAMES_192 ", " THALWEG_NAMES_96_127

#define THALWEG_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define THALWEG_SUMS_16(i) THALWEG_SUMS_4(i), THALWEG_SUMS_4(i + 4), THALWEG_SUMS_4(i + 8), THALWEG_SUMS_4(i + 12)
#define THALWEG_SUMS_32 THALWEG_SUMS_16(0)
#define THALWEG_SUMS_64 THALWEG_SUMS_16(0), THALWEG_SUMS_16(16)
#define THALWEG_SUMS_96 THALWEG_SUMS_64, THALWEG_SUMS_16(32)
#define THALWEG_SUMS_128 THALWEG_SUMS_96, THALWEG_SUMS_16(48)
#define THALWEG_SUMS_192 THALWEG_SUMS_128, THALWEG_SUMS_16(64), THALWEG_SUMS_16(80)
#define THALWEG_SUMS_256 THALWEG_SUMS_192, THALWEG_SUMS_16(96), THALWEG_SUMS_16(112)

#define THALWEG_WGMMA_ASM(N, TYPES, A, B, ACCUMULATE, TRANSPOSED)                                                  \
  "{\n"                                                                                                            \
  ".reg .pred accumulate;\n"                                                                                       \
  "setp.ne.b32 accumulate, " ACCUMULATE                                                                            \
  ", 0;\n"                                                                                                         \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES " {" THALWEG_NAMES_##N "}, " A ", " B                    \
                                                                                 ", accumulate, 1, 1, " TRANSPOSED \
                                                                                 ";\n"                             \
                                                                                 "}\n"

// d[64,64] (+)= a[64,16] b[16,64], A from shared memory too: a[m,k] = tile[m][k].
#define THALWEG_WGMMA_SHARED(TYPES)                                      \
  asm volatile(THALWEG_WGMMA_ASM(64, TYPES, "%32", "%33", "%34", "0, 0") \
               : THALWEG_SUMS_64                                         \
               : "l"(a), "l"(b), "r"(accumulate))

template <class T>
__device__ inline void wgmma_shared(float (&d)[32], std::uint64_t a, std::uint64_t b, int accumulate) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    THALWEG_WGMMA_SHARED("bf16.bf16");
  } else {
    THALWEG_WGMMA_SHARED("f16.f16");
  }
}

// d[64,N] (+)= a[64,16] b[16,N] for N = 32, 64, 96, 128, 192, 256, which follows from d's size. A0 to A3, B, P and TR
// are the numbers of the operands after d: a, b, accumulate, kTransposed.
#define THALWEG_WGMMA(N, A0, A1, A2, A3, B, P, TR, TYPES)                                                       \
  asm volatile(THALWEG_WGMMA_ASM(N, TYPES, "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}", "%" #B, "%" #P, "%" #TR) \
               : THALWEG_SUMS_##N                                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposed ? 1 : 0))
#define THALWEG_WGMMA_OF_TYPES(N, ...)                                                                          \
  template <class T, bool kTransposed = false>                                                                  \
  __device__ inline void wgmma(float(&d)[N / 2], const std::uint32_t(&a)[4], std::uint64_t b, int accumulate) { \
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {                                                           \
      THALWEG_WGMMA(N, __VA_ARGS__, "bf16.bf16");                                                               \
    } else {                                                                                                    \
      THALWEG_WGMMA(N, __VA_ARGS__, "f16.f16");                                                                 \
    }                                                                                                           \
  }

THALWEG_WGMMA_OF_TYPES(32, 16, 17, 18, 19, 20, 21, 22)
THALWEG_WGMMA_OF_TYPES(64, 32, 33, 34, 35, 36, 37, 38)
THALWEG_WGMMA_OF_TYPES(96, 48, 49, 50, 51, 52, 53, 54)
THALWEG_WGMMA_OF_TYPES(128, 64, 65, 66, 67, 68, 69, 70)
THALWEG_WGMMA_OF_TYPES(192, 96, 97, 98, 99, 100, 101, 102)
THALWEG_WGMMA_OF_TYPES(256, 128, 129, 130, 131, 132, 133, 134)

}  // namespace thalweg::cu
