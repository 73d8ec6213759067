#pragma once

// Warp-wide products of bytes with sums in 32-bit integers; fragments as in mma.h.

#include <cstdint>

namespace thalweg::cu {

// product[16,8] = a[16,32] b[32,8], b signed.
template <bool kSigned>
__device__ inline void multiply_bytes_32(std::int32_t (&product)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(product[0]), "=r"(product[1]), "=r"(product[2]), "=r"(product[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(product[0]), "=r"(product[1]), "=r"(product[2]), "=r"(product[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
  }
}
// product[16,8] = a[16,16] b[16,8], a unsigned, b signed.
__device__ inline void multiply_bytes_16(std::int32_t (&product)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(product[0]), "=r"(product[1]), "=r"(product[2]), "=r"(product[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// sum[16,8] += a[16,32] b[32,8], b signed.
template <bool kSigned>
__device__ inline void add_bytes_32(std::int32_t (&sum)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

}  // namespace thalweg::cu
