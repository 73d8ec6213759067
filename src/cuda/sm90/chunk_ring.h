#pragma once

// The ring of shared memory through which a block's chunks go, and what fills and empties it: a warpgroup's copies of
// k, q and v, and of the outputs that the consumers leave where v was.
//
// `full` barriers say that a chunk may be read, `done` barriers that all consumers are done with it.

#include "cuda/device/async_copy.h"
#include "cuda/device/barrier.h"
#include "cuda/device/chunk_arguments.h"
#include "cuda/device/fragments.h"
#include "cuda/sm90/chunk_work.h"

namespace thalweg::cu::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kRows = 64;            // of the state, per consumer warpgroup
constexpr int kTile = kChunk * 128;  // bytes of a tile of 64 tokens x 64 columns

// A stage: k, q, v, record.
template <int K, int kGroups>
struct Ring {
  static constexpr int kKeys = K / kTileColumns * kTile;
  static constexpr int kQueries = kKeys;
  static constexpr int kValues = 2 * kKeys;
  static constexpr int kRecord = kValues + kGroups * kTile;
  static constexpr int kStageBytes = (kRecord + ChunkRecord::kBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = 3;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = kBytes + 1024;  // room to align

  std::uint32_t address;
  std::byte* bytes;
  std::uint32_t full;
  std::uint32_t done;

  struct Barriers {
    std::uint64_t full[kStages];
    std::uint64_t done[kStages];
  };

  // By the whole block. A stage is full after `arrivals`, done when all consumers' warps are.
  __device__ Ring(std::byte* shared, Barriers& barriers, int arrivals)
      : full(shared_address(barriers.full)), done(shared_address(barriers.done)) {
    const std::uint32_t offset = (1024 - shared_address(shared) % 1024) % 1024;
    address = shared_address(shared) + offset;
    bytes = shared + offset;
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        barrier_init(full + 8 * stage, static_cast<std::uint32_t>(arrivals));
        barrier_init(done + 8 * stage, kGroups * 4);
      }
      fence_barrier_init();
    }
    __syncthreads();
  }

  __device__ std::uint32_t stage_address(int stage) const {
    return address + static_cast<std::uint32_t>(stage * kStageBytes);
  }
  __device__ std::byte* stage_bytes(int stage) const { return bytes + stage * kStageBytes; }
  static __device__ int after(int stage) { return stage == kStages - 1 ? 0 : stage + 1; }
  // Chunks take the stages in turn.
  __device__ void wait_until_full(int chunk, int stage) const { barrier_wait(full + 8 * stage, chunk / kStages % 2); }
  __device__ void wait_until_done(int chunk, int stage) const { barrier_wait(done + 8 * stage, chunk / kStages % 2); }
  __device__ void arrive_full(int stage) const {
    fence_for_async_reads();
    barrier_arrive(full + 8 * stage);
  }
  __device__ void arrive_done(int stage) const { barrier_arrive(done + 8 * stage); }
};

// A warpgroup's part in the copies of one run of chunks.
template <class T, int K, int kGroups>
class TileCopies {
  using R = Ring<K, kGroups>;
  static constexpr int kKeyPieces = K / 8;
  static constexpr int kKeyRows = kWarpgroup / kKeyPieces;  // a multiple of 8: a thread's swizzle is always the same
  static constexpr int kValuePieces = kGroups * 8;
  static constexpr int kValueRows = kWarpgroup / kValuePieces;

 public:
  __device__ TileCopies(const ChunkArguments& args, const Work& work) : args_(args), work_(work) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const auto base = [&](const auto& tensor, int head, int column) {
      return tensor.strides[0] * work.row + tensor.strides[1] * work.begin + tensor.strides[2] * head + column;
    };
    key_row_ = thread / kKeyPieces;
    value_row_ = thread / kValuePieces;
    const int key_piece = thread % kKeyPieces;
    const int value_piece = thread % kValuePieces;
    const int value_column = work.first_row + value_piece * 8;
    k_ = static_cast<const T*>(args.k.data) + base(args.k, work.key_head, key_piece * 8) + key_row_ * args.k.strides[1];
    q_ = static_cast<const T*>(args.q.data) + base(args.q, work.key_head, key_piece * 8) + key_row_ * args.q.strides[1];
    v_ = static_cast<const T*>(args.v.data) + base(args.v, work.head, value_column) + value_row_ * args.v.strides[1];
    o_ = static_cast<T*>(args.o.data) + base(args.o, work.head, value_column) + value_row_ * args.o.strides[1];
    key_place_ = static_cast<std::uint32_t>(key_piece / 8 * kTile) + swizzled(key_row_, key_piece % 8);
    value_place_ =
        static_cast<std::uint32_t>(R::kValues + value_piece / 8 * kTile) + swizzled(value_row_, value_piece % 8);
  }

  __device__ bool all_loaded() const { return loaded_ >= work_.length; }

  // Begins to load the next chunk's k, q and v; zeros past the end. Past the last chunk only the group is committed.
  __device__ void load(const R& ring, int stage) {
    const int length = work_.length - loaded_;  // those of this chunk and after
    if (length > 0) {
      const std::int64_t k_step = kKeyRows * args_.k.strides[1];
      const std::int64_t q_step = kKeyRows * args_.q.strides[1];
      const std::int64_t v_step = kValueRows * args_.v.strides[1];
      const std::uint32_t place = ring.stage_address(stage);
#pragma unroll
      for (int i = 0; i < kChunk / kKeyRows; ++i) {
        const bool valid = key_row_ + i * kKeyRows < length;
        const std::uint32_t to = place + key_place_ + static_cast<std::uint32_t>(i * kKeyRows * 128);
        copy_16_bytes(to, valid ? k_ : args_.k.data, valid);
        copy_16_bytes(to + R::kQueries, valid ? q_ : args_.q.data, valid);
        k_ += k_step;
        q_ += q_step;
      }
#pragma unroll
      for (int i = 0; i < kChunk / kValueRows; ++i) {
        const bool valid = !work_.no_values && value_row_ + i * kValueRows < length;
        copy_16_bytes(place + value_place_ + static_cast<std::uint32_t>(i * kValueRows * 128),
                      valid ? v_ : args_.v.data, valid);
        v_ += v_step;
      }
      loaded_ += kChunk;
    }
    commit_copies();
  }

  // Stores a chunk's output, in the order of the chunks. f32 outputs the consumers store themselves.
  __device__ void store_output(const R& ring, int chunk, int stage) {
    if (args_.o_is_f32) return;
    const std::int64_t o_step = kValueRows * args_.o.strides[1];
    const int length = chunk < work_.silent ? 0 : work_.length - chunk * kChunk;
    const std::byte* from = ring.stage_bytes(stage) + value_place_;
#pragma unroll
    for (int i = 0; i < kChunk / kValueRows; ++i) {
      const uint4 piece = *reinterpret_cast<const uint4*>(from + i * kValueRows * 128);
      if (value_row_ + i * kValueRows < length) __stcs(reinterpret_cast<uint4*>(o_), piece);
      o_ += o_step;
    }
  }

 private:
  const ChunkArguments& args_;
  const Work& work_;
  const T* k_;
  const T* q_;
  const T* v_;
  T* o_;
  int key_row_;
  int value_row_;
  std::uint32_t key_place_;
  std::uint32_t value_place_;
  int loaded_ = 0;  // tokens
};

}  // namespace thalweg::cu::sm90
