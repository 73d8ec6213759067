#pragma once

// The ring of chunks in shared memory, and the copies of the producer warpgroup: k, q and v into it, outputs, which the
// consumers have written over v, out of it.
//
// An mbarrier full[stage] completes when a chunk can be read. The consumers arrive on a named barrier of the stage when
// they have read it; only the producer warpgroup waits there.

#include "cuda/common/async_copy.h"
#include "cuda/common/mbarrier.h"
#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/gated_delta/chunk_arguments.h"
#include "cuda/gated_delta/chunk_work.h"

namespace thalweg::cu::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kRows = 64;            // of the state, per consumer warpgroup
constexpr int kTile = kChunk * 128;  // bytes of a tile of 64 tokens x 64 columns

// A stage holds k, q, v and the record of a chunk.
template <int K, int kConsumers>
struct Ring {
  static constexpr int kKeys = K / kTileColumns * kTile;
  static constexpr int kQueries = kKeys;
  static constexpr int kValues = 2 * kKeys;
  static constexpr int kRecord = kValues + kConsumers * kTile;
  static constexpr int kStageBytes = (kRecord + ChunkRecord::kBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = 3;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = kBytes + 1024;  // room to align
  static constexpr int kFirstDone = 2;           // named barriers; 0 is __syncthreads(), 1 the producer warpgroup's
  static constexpr bool kReleasesTiles = false;  // consumers say when they have applied a chunk; outputs need a fence

  std::uint32_t address;
  std::byte* bytes;
  MbarrierArray full;

  struct Barriers {
    std::uint64_t full[kStages];
  };

  // By the whole block. A stage is full after `arrivals`.
  __device__ Ring(std::byte* shared, Barriers& barriers, int arrivals) : full{shared_address(barriers.full)} {
    const std::uint32_t offset = (1024 - shared_address(shared) % 1024) % 1024;
    address = shared_address(shared) + offset;
    bytes = shared + offset;
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        full[stage].init(static_cast<std::uint32_t>(arrivals));
      }
      fence_mbarrier_init();
    }
    __syncthreads();
  }

  __device__ std::uint32_t stage_address(int stage) const {
    return address + static_cast<std::uint32_t>(stage * kStageBytes);
  }
  __device__ std::byte* stage_bytes(int stage) const { return bytes + stage * kStageBytes; }
  static __device__ int after(int stage) { return stage == kStages - 1 ? 0 : stage + 1; }
  // By consumers: until they can read k and q, and then the rest.
  __device__ void wait_until_loaded(const Work&, int chunk, int stage) const { full[stage].wait(chunk / kStages % 2); }
  __device__ void wait_until_full(int, int) const {}
  // By the producer warpgroup. No consumer can be a round ahead: it would wait until the stage is full again.
  __device__ void wait_until_done(int stage) const { named_barrier(kFirstDone + stage, (kConsumers + 1) * kWarpgroup); }
  __device__ void arrive_full(int stage) const {
    fence_proxy_async();
    full[stage].arrive();
  }
  // By all consumers.
  __device__ void arrive_done(int stage) const {
    named_barrier_arrive(kFirstDone + stage, (kConsumers + 1) * kWarpgroup);
  }
};

// The producer warpgroup's copies.
template <class T, int K, int kConsumers>
struct TileCopies {
  using R = Ring<K, kConsumers>;
  const ChunkArguments& args;
  const Work& work;

  // A thread's 16 bytes of rows row, row + kRowStep, ... of a tile whose rows have kVectors vectors of 16 bytes.
  template <int kVectors>
  struct ThreadVectors {
    static constexpr int kRowStep = kWarpgroup / kVectors;  // a multiple of 8: a thread's swizzle is always the same
    int row;
    int vector_index;
    __device__ ThreadVectors() {
      const int thread = opaque(static_cast<int>(threadIdx.x) % kWarpgroup);
      row = thread / kVectors;
      vector_index = thread % kVectors;
    }
    __device__ std::uint32_t offset_in_tile() const {
      return static_cast<std::uint32_t>(vector_index / 8 * kTile) + swizzled(row, vector_index % 8);
    }
    __device__ std::int64_t offset(const std::int64_t* strides, const Work& work, int chunk, int head,
                                   int column) const {
      return strides[0] * work.row + strides[1] * (work.begin + chunk * kChunk + row) + strides[2] * head + column +
             vector_index * 8;
    }
  };

  // Starts the copies of a chunk's k, q and v; zeros past the end. Past the last chunk it only commits the group.
  __device__ void load(const R& ring, int chunk, int stage) const {
    const int length = work.length - chunk * kChunk;  // tokens of this chunk and those after it
    const std::uint32_t address = ring.stage_address(stage);
    if (length > 0) {
      const ThreadVectors<K / 8> keys;
      const T* k = static_cast<const T*>(args.k.data) + keys.offset(args.k.strides, work, chunk, work.key_head, 0);
      const T* q = static_cast<const T*>(args.q.data) + keys.offset(args.q.strides, work, chunk, work.key_head, 0);
      const ThreadVectors<kConsumers * 8> values;
      const T* v =
          static_cast<const T*>(args.v.data) + values.offset(args.v.strides, work, chunk, work.head, work.first_row);
      const auto copy = [&](auto is_valid) {
#pragma unroll
        for (int i = 0; i < kChunk; i += keys.kRowStep) {
          const bool valid = is_valid(keys.row + i);
          const std::uint32_t to = address + keys.offset_in_tile() + static_cast<std::uint32_t>(i * 128);
          copy_16_bytes(to, valid ? k : args.k.data, valid);
          copy_16_bytes(to + R::kQueries, valid ? q : args.q.data, valid);
          k += keys.kRowStep * args.k.strides[1];
          q += keys.kRowStep * args.q.strides[1];
        }
#pragma unroll
        for (int i = 0; i < kChunk; i += values.kRowStep) {
          const bool valid = !work.no_values && is_valid(values.row + i);
          copy_16_bytes(address + R::kValues + values.offset_in_tile() + static_cast<std::uint32_t>(i * 128),
                        valid ? v : args.v.data, valid);
          v += values.kRowStep * args.v.strides[1];
        }
      };
      if (length >= kChunk) {
        copy([](int) { return true; });
      } else {
        copy([&](int row) { return row < length; });
      }
    }
    commit_copies();
  }

  // Stores a chunk's output. The consumers store f32 outputs themselves.
  __device__ void store_output(const R& ring, int chunk, int stage) const {
    if (args.o_is_f32 || chunk < work.warmup) return;
    const int length = work.length - chunk * kChunk;
    const ThreadVectors<kConsumers * 8> values;
    T* o = static_cast<T*>(args.o.data) + values.offset(args.o.strides, work, chunk, work.head, work.first_row);
    const std::byte* from = ring.stage_bytes(stage) + R::kValues + values.offset_in_tile();
#pragma unroll
    for (int i = 0; i < kChunk; i += values.kRowStep) {
      const uint4 vector = *reinterpret_cast<const uint4*>(from + i * 128);
      if (values.row + i < length) __stcs(reinterpret_cast<uint4*>(o), vector);
      o += values.kRowStep * args.o.strides[1];
    }
  }
};

}  // namespace thalweg::cu::sm90
