#pragma once

// The ring of chunks in shared memory: an mbarrier full[stage] completes when a chunk can be read.

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
};

}  // namespace thalweg::cu::sm90
