#pragma once

// The chunks of a batch, numbered through its rows. Each block finds its chunk itself, from the cu_seqlens in device
// memory whose values host code has not checked. A sequence whose bounds are out of range has no chunks.

#include <cstdint>

#include "cuda/common/warp.h"

namespace thalweg::cu {

struct ChunkTable {
  const std::int32_t* cu_seqlens = nullptr;  // null: every batch row is a sequence
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;  // of a batch row
  int chunk_size = 64;

  __device__ std::int64_t row_chunks() const { return (tokens + chunk_size - 1) / chunk_size; }

  // Chunks of packed sequence n; `begin` is its first token.
  __device__ std::int64_t count(std::int64_t n, std::int64_t& begin, std::int64_t& end) const {
    if (n >= sequences) return 0;
    begin = cu_seqlens[n];
    end = cu_seqlens[n + 1];
    if (begin < 0 || begin > end || end > tokens) return 0;
    // In 32 bits, which divide in a fifth of the time.
    return (static_cast<std::uint32_t>(end - begin) + static_cast<std::uint32_t>(chunk_size) - 1U) /
           static_cast<std::uint32_t>(chunk_size);
  }
};

struct ChunkSpan {
  std::int64_t row = 0;     // of the batch
  std::int64_t begin = 0;   // first token in the row
  std::int64_t number = 0;  // among the chunks of the row
  int length = 0;           // 0: there is no such chunk
  std::int64_t sequence = 0;
  std::int64_t sequence_begin = 0;  // its first token
};

// Finds chunk i. All lanes of a warp call it, and all return the chunk.
__device__ inline ChunkSpan find_chunk(const ChunkTable& table, std::int64_t i) {
  ChunkSpan chunk;
  std::int64_t begin = 0;
  std::int64_t end = table.tokens;
  if (table.cu_seqlens == nullptr) {
    chunk.row = i / table.row_chunks();
    chunk.sequence = chunk.row;
    chunk.number = i % table.row_chunks();
    begin = chunk.number * table.chunk_size;
  } else if (table.sequences == 1) {
    if (i >= table.count(0, begin, end)) return {};
    chunk.number = i;
    chunk.sequence_begin = begin;
    begin += i * table.chunk_size;
  } else {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    std::int64_t before = 0;
    chunk.number = i;
    for (std::int64_t first = 0;; first += kWarpSize) {
      if (first >= table.sequences) return {};
      const std::int64_t own = table.count(first + lane, begin, end);
      std::int64_t upto = own;
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const std::int64_t other = __shfl_up_sync(0xFFFFFFFFU, upto, static_cast<unsigned>(distance));
        if (lane >= distance) upto += other;
      }
      const unsigned past = __ballot_sync(0xFFFFFFFFU, before + upto > i);
      if (past != 0) {
        const int owner = __ffs(static_cast<int>(past)) - 1;
        chunk.sequence = first + owner;
        chunk.sequence_begin = __shfl_sync(0xFFFFFFFFU, begin, owner);
        begin = __shfl_sync(0xFFFFFFFFU, begin + (i - before - (upto - own)) * table.chunk_size, owner);
        end = __shfl_sync(0xFFFFFFFFU, end, owner);
        break;
      }
      before += __shfl_sync(0xFFFFFFFFU, upto, kWarpSize - 1);
    }
  }
  chunk.begin = begin;
  chunk.length = static_cast<int>(min(end - begin, static_cast<std::int64_t>(table.chunk_size)));
  return chunk;
}

// The number of chunks before sequence n in its row. All lanes of a warp call it.
__device__ inline std::int64_t chunks_before(const ChunkTable& table, std::int64_t n) {
  if (table.cu_seqlens == nullptr) return 0;
  std::int64_t sum = 0;
  for (std::int64_t m = static_cast<std::int64_t>(threadIdx.x) % kWarpSize; m < n; m += kWarpSize) {
    std::int64_t begin;
    std::int64_t end;
    sum += table.count(m, begin, end);
  }
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
  return sum;
}

// The number of blocks that covers all chunks, on the host.
inline std::int64_t max_chunks(const ChunkTable& table) {
  const std::int64_t c = table.chunk_size;
  return table.cu_seqlens == nullptr ? table.sequences * ((table.tokens + c - 1) / c)
                                     : table.tokens / c + table.sequences;
}

}  // namespace thalweg::cu
