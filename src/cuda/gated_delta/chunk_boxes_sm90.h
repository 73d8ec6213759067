#pragma once

// Copies of tiles, 64 tokens by 64 columns of a head, between q, k, v, o and shared memory by the copy engine: one
// thread starts them.

#include <cuda.h>

#include "cuda/common/mbarrier.h"
#include "cuda/gated_delta/chunk_arguments.h"
#include "cuda/gated_delta/chunk_ring_sm90.h"

namespace thalweg::cu::sm90 {

struct ChunkMaps {
  CUtensorMap q, k, v, o;  // [rows,heads,tiles,tokens,kTileColumns] of 16-bit elements
};

// For blocks of `consumers` tiles of values. Throws Error for strides that tensor maps do not allow.
ChunkMaps make_chunk_maps(const ChunkArguments& args, int consumers);

// Whether all tokens of a chunk exist, as do those of all but a sequence's last one.
__device__ inline bool is_whole(const Work& work, int chunk) { return work.length - chunk * kChunk >= kChunk; }

// By one thread. What is behind a sequence is loaded too.
template <int K, int kConsumers>
struct TileBoxes {
  using R = Ring<K, kConsumers>;
  static constexpr int kKeyBytes = 2 * R::kKeys;  // of k and q
  static constexpr int kValueBytes = kConsumers * kTile;

  const ChunkMaps& maps;
  const Work& work;

  static __device__ void prefetch(const ChunkMaps& maps) {
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.v}) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    }
  }

  __device__ int token(int chunk) const { return work.begin + chunk * kChunk; }

  // Start the copies of a chunk into a stage; the barrier expects kKeyBytes or kValueBytes.
  __device__ void load_keys(std::uint32_t stage, int chunk, Mbarrier barrier) const {
    copy(stage, maps.k, token(chunk), 0, work.key_head, barrier);
    copy(stage + R::kQueries, maps.q, token(chunk), 0, work.key_head, barrier);
  }
  __device__ void load_values(std::uint32_t stage, int chunk, Mbarrier barrier) const {
    const int first = work.no_values ? -kChunk : token(chunk);  // there are zeros
    copy(stage + R::kValues, maps.v, first, work.first_row / kTileColumns, work.head, barrier);
  }

  // Stores the output of a chunk all of whose tokens exist, after fence_proxy_async().
  __device__ void store_output(std::uint32_t from, int chunk) const {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&maps.o),
        "r"(0), "r"(token(chunk)), "r"(work.first_row / kTileColumns), "r"(work.head), "r"(work.row), "r"(from)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  // Waits until the stores have read shared memory.
  static __device__ void finish_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

  __device__ void copy(std::uint32_t to, const CUtensorMap& map, int token, int tile, int head,
                       Mbarrier barrier) const {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
        "%6}], [%7];" ::"r"(to),
        "l"(&map), "r"(0), "r"(token), "r"(tile), "r"(head), "r"(work.row), "r"(barrier.address)
        : "memory");
  }
};

// A warp stores the output of a chunk that is not whole, from its tiles.
template <class T>
__device__ void store_rows(const ChunkArguments& args, const Work& work, const std::byte* tiles, int count, int chunk) {
  constexpr int kRowVectors = kTileColumns / 8;
  const int begin = work.begin + chunk * kChunk;
  T* const to = static_cast<T*>(args.o.data) + args.o.strides[0] * work.row + args.o.strides[1] * begin +
                args.o.strides[2] * work.head + work.first_row;
  const int rows = work.length - chunk * kChunk;
#pragma unroll 1
  for (int tile = 0; tile < count; ++tile) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < rows * kRowVectors; i += 32) {
      const int row = i / kRowVectors;
      const int vector = i % kRowVectors;
      *reinterpret_cast<uint4*>(to + args.o.strides[1] * row + tile * kTileColumns + vector * 8) =
          *reinterpret_cast<const uint4*>(tiles + tile * kTile + swizzled(row, vector));
    }
  }
}

// A warpgroup makes zeros of the tokens behind a sequence, which may be another one's.
__device__ inline void clear_rows(std::byte* tiles, int count, int length, int thread) {
  constexpr int kRowVectors = kTileColumns / 8;
#pragma unroll 1
  for (int i = thread; i < count * kChunk * kRowVectors; i += kWarpgroup) {
    if (i / kRowVectors % kChunk >= length) reinterpret_cast<uint4*>(tiles)[i] = {};
  }
  fence_proxy_async();
}

}  // namespace thalweg::cu::sm90
