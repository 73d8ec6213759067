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

// A pair of blocks to row `row` of a tile of 64 columns; word(i) is the i-th of its words.
template <class Word>
__device__ __forceinline__ void unpack_pair(Word word, std::uint8_t* tile, int row) {
  std::uint32_t last = word(0);
  std::uint32_t middle = 0;
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    // The first block's codes begin within a word, the second's with one.
    const std::uint32_t bits = block == 0 ? last : middle >> 16;
    const __half2 scale = __half2half2(__ushort_as_half(static_cast<unsigned short>(bits)));
#pragma unroll
    for (int vector = 0; vector < 4; ++vector) {
      std::uint32_t codes[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = 2 * vector + i;
        if (block == 0) {
          middle = word(n + 1);
          codes[i] = __funnelshift_r(last, middle, 16);
          last = middle;
        } else {
          codes[i] = word(n + 9);
        }
      }
      const uint2 low = unpack_codes(codes[0], scale);
      const uint2 high = unpack_codes(codes[1], scale);
      *reinterpret_cast<uint4*>(tile + swizzled(row, 4 * block + vector)) = {low.x, low.y, high.x, high.y};
    }
  }
}

// Reads positions first..first+kKeys-1 of a key head and stores them as kKeys swizzled rows; zeros from `end` on. The
// threads must meet before the rows are read.
template <int D, int kKeys, int kThreads>
__device__ void unpack_positions(const CacheTable& table, const CachedSequence& sequence, const CacheView& cache,
                                 int key_head, int first, int end, std::uint8_t* to, int thread) {
  constexpr int kPairs = D / kPairValues;
  static_assert(kKeys * kPairs % kThreads == 0 || kThreads % (kKeys * kPairs) == 0);
  // Neighboring threads have neighboring rows, whose vectors lie in different banks.
#pragma unroll 1
  for (int i = thread; i < kKeys * kPairs; i += kThreads) {
    const int row = i % kKeys;
    const int pair = i / kKeys;
    const int position = first + row;
    const std::int64_t offset = position < end ? cache_offset(table, sequence, cache, position) : -1;
    std::uint32_t words[kPairWords] = {};
    if (offset >= 0) {
      const auto* from = reinterpret_cast<const std::uint32_t*>(
          packed_row(cache, offset + key_head * cache.strides[2]) + pair * kPairBytes);
#pragma unroll
      for (int n = 0; n < kPairWords; ++n) words[n] = from[n];
    }
    unpack_pair([&](int n) { return words[n]; }, to + pair * (kKeys * 128), row);
  }
}

// Starts to copy the same positions as they are, row by row; zeros from `end` on.
template <int D, int kKeys, int kThreads>
__device__ void copy_packed_positions(const CacheTable& table, const CachedSequence& sequence, const CacheView& cache,
                                      int key_head, int first, int end, std::uint32_t to, int thread) {
  constexpr int kBytes = packed_vector_bytes(D);
#pragma unroll 4
  for (int i = thread; i < kKeys * kPairWords; i += kThreads) {
    const int row = i / kPairWords;
    const int position = first + row;
    const std::int64_t offset = position < end ? cache_offset(table, sequence, cache, position) : -1;
    const std::uint8_t* from = packed_row(cache, (offset < 0 ? 0 : offset) + key_head * cache.strides[2]);
    copy_bytes<kBytes>(to + static_cast<std::uint32_t>(i * kBytes), from + (i - row * kPairWords) * kBytes,
                       offset >= 0);
  }
}

// Rows that were copied so, of a warp, to kKeys swizzled rows.
template <int D, int kKeys>
__device__ void unpack_copied(const std::uint8_t* rows, std::uint8_t* to, int lane) {
  constexpr int kPairs = D / kPairValues;
#pragma unroll
  for (int i = lane; i < kKeys * kPairs; i += kWarpSize) {
    const int row = i % kKeys;
    const int pair = i / kKeys;
    const auto* words = reinterpret_cast<const std::uint32_t*>(rows + row * packed_row_bytes(D) + pair * kPairBytes);
    unpack_pair([&](int n) { return words[n]; }, to + pair * (kKeys * 128), row);
  }
}

}  // namespace thalweg::cu
