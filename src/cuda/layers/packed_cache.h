#pragma once

// Rows of a cache of Q8_0 as tiles of f16 in shared memory. Two blocks, 64 values, are 17 words: a swizzled row of a
// tile of 64 columns.

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/common/async_copy.h"
#include "cuda/common/warp.h"
#include "cuda/layers/cache_places.h"

namespace thalweg::cu {

// What a cache of Q8_0 is in place of an element's type.
struct PackedQ8 {};
// The operands of matrix units that the rows of a cache become.
template <class Cache>
using OperandOf = std::conditional_t<std::is_same_v<Cache, PackedQ8>, __half, Cache>;

constexpr int kPairValues = 64;
constexpr int kPairBytes = 68;
constexpr int kPairWords = kPairBytes / 4;
// Bytes of a row of D values. Alignment makes it kPairWords vectors of packed_vector_bytes().
__host__ __device__ constexpr int packed_row_bytes(int width) { return width / kPairValues * kPairBytes; }
__host__ __device__ constexpr int packed_vector_bytes(int width) { return width / 16; }

__device__ inline const std::uint8_t* packed_row(const CacheView& cache, std::int64_t offset) {
  constexpr int kBlock = 32;
  constexpr int kBlockBytes = 34;
  return static_cast<const std::uint8_t*>(cache.data) + offset / kBlock * kBlockBytes;
}

// Four codes times a scale, each product rounded once.
__device__ inline uint2 unpack_codes(std::uint32_t codes, __half2 scale) {
  // A byte b below 0x64 is 1024 + b in f16; codes become bytes by adding 128.
  const std::uint32_t bytes = codes ^ 0x80808080U;
  const __half2 offset = __halves2half2(__ushort_as_half(0x6480), __ushort_as_half(0x6480));  // 1152
  const auto product = [&](std::uint32_t selector) {
    const std::uint32_t bits = __byte_perm(bytes, 0x64646464U, selector);
    const __half2 exact = __hsub2(reinterpret_cast<const __half2&>(bits), offset);
    const __half2 result = __hmul2(exact, scale);
    return reinterpret_cast<const std::uint32_t&>(result);
  };
  return {product(0x4140U), product(0x4342U)};
}

// The 64 values of a pair of blocks: store(i, values 8 i to 8 i + 7).
template <class Store>
__device__ __forceinline__ void unpack_pair(const std::uint32_t (&words)[kPairWords], Store store) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const std::uint32_t bits = block == 0 ? words[0] : words[8] >> 16;
    const __half2 scale = __half2half2(__ushort_as_half(static_cast<unsigned short>(bits)));
    // The first block's codes begin within a word, the second's with one.
    const auto codes = [&](int n) { return block == 0 ? __funnelshift_r(words[n], words[n + 1], 16) : words[n + 9]; };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 low = unpack_codes(codes(2 * i), scale);
      const uint2 high = unpack_codes(codes(2 * i + 1), scale);
      store(4 * block + i, uint4{low.x, low.y, high.x, high.y});
    }
  }
}

// The same to row `row` of a tile of 64 columns.
__device__ __forceinline__ void unpack_pair(const std::uint32_t (&words)[kPairWords], std::uint8_t* tile, int row) {
  unpack_pair(words, [&](int i, uint4 values) { *reinterpret_cast<uint4*>(tile + swizzled(row, i)) = values; });
}

// A pair of a position's row in the cache; zeros if `offset`, that of the row's first element, is negative.
__device__ __forceinline__ void read_pair(std::uint32_t (&words)[kPairWords], const CacheView& cache,
                                          std::int64_t offset, int pair) {
#pragma unroll
  for (std::uint32_t& word : words) word = 0;
  if (offset < 0) return;
  const auto* from = reinterpret_cast<const std::uint32_t*>(packed_row(cache, offset) + pair * kPairBytes);
#pragma unroll
  for (int n = 0; n < kPairWords; ++n) words[n] = from[n];
}

// Reads positions first..first+kKeys-1 of a key head and stores them as kKeys swizzled rows; zeros from `end` on. The
// threads must meet before the rows are read.
template <int D, int kKeys, int kThreads>
__device__ void unpack_positions(const CacheTable& table, const CachedSequence& sequence, const CacheView& cache,
                                 int key_head, int first, int end, std::uint8_t* to, int thread) {
  // Neighboring threads have neighboring rows, whose vectors lie in different banks.
#pragma unroll 1
  for (int i = thread; i < kKeys * (D / kPairValues); i += kThreads) {
    const int row = i % kKeys;
    const int pair = i / kKeys;
    const int position = first + row;
    const std::int64_t offset = position < end ? cache_offset(table, sequence, cache, position) : -1;
    std::uint32_t words[kPairWords];
    read_pair(words, cache, offset < 0 ? offset : offset + key_head * cache.strides[2], pair);
    unpack_pair(words, to + pair * (kKeys * 128), row);
  }
}

// A warp starts to copy positions first..first+kRows-1 as they are, row by row; zeros from `end` on.
template <int D, int kRows>
__device__ void copy_packed_rows(const CacheTable& table, const CachedSequence& sequence, const CacheView& cache,
                                 int key_head, int first, int end, std::uint32_t to, int lane) {
  constexpr int kBytes = packed_vector_bytes(D);
#pragma unroll 4
  for (int i = lane; i < kRows * kPairWords; i += kWarpSize) {
    const int row = i / kPairWords;
    const int position = first + row;
    const std::int64_t offset = position < end ? cache_offset(table, sequence, cache, position) : -1;
    const std::uint8_t* from = packed_row(cache, (offset < 0 ? 0 : offset) + key_head * cache.strides[2]);
    copy_bytes<kBytes>(to + static_cast<std::uint32_t>(i * kBytes), from + (i - row * kPairWords) * kBytes,
                       offset >= 0);
  }
}

// A warp's rows that were copied so, to as many swizzled rows. A lane reads all its pairs before it stores any.
template <int D, int kRows>
__device__ __forceinline__ void unpack_rows(const std::uint8_t* rows, std::uint8_t* tiles, int lane) {
  constexpr int kCount = kRows * (D / kPairValues) / kWarpSize;  // pairs of a lane
  static_assert(kRows * (D / kPairValues) % kWarpSize == 0);
  std::uint32_t words[kCount][kPairWords];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = i * kWarpSize + lane;
    const auto* from =
        reinterpret_cast<const std::uint32_t*>(rows + at % kRows * packed_row_bytes(D) + at / kRows * kPairBytes);
#pragma unroll
    for (int n = 0; n < kPairWords; ++n) words[i][n] = from[n];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = i * kWarpSize + lane;
    unpack_pair(words[i], tiles + at / kRows * (kRows * 128), at % kRows);
  }
}

}  // namespace thalweg::cu
