#pragma once

// A warp's products of rows of a matrix with one row of activations, K tile by K tile through a ring in shared memory.

#include "cuda/experts/byte_rows.h"
#include "cuda/experts/row_bytes.h"

namespace thalweg::cu {

constexpr int kRunRows = 16;  // of a run, multiplied at a time

// Runs of 16 rows, one after the other.
struct RowByteRuns {
  const std::uint8_t* first;
  const std::uint8_t* end;  // of the matrix
  int row_bytes;
  int runs;
  int stride;        // rows from run to run
  int first_k_tile;  // the K tiles are every k_step-th from here on
  int k_step;
  int k_tiles;  // of a row

  __device__ int steps() const { return runs * ((k_tiles - first_k_tile + k_step - 1) / k_step); }
};

template <DType kType>
class RowByteRing {
 public:
  using Rows = ByteRows<kType>;
  static constexpr int kStageBytes = Rows::kBytes;
  static constexpr int kStages = 3;
  static constexpr int kRingBytes = kStages * kStageBytes;

  // ring: kRingBytes of shared memory.
  __device__ RowByteRing(const RowByteRuns& runs, std::uint8_t* ring)
      : runs_(runs),
        copies_(runs.row_bytes),
        ring_(ring),
        steps_(runs.steps()),
        next_(runs.first),
        next_k_tile_(runs.first_k_tile) {}

  // Fills the ring.
  __device__ void begin() {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) copy_next();
  }

  // Multiplies the runs with the activations of `records`; calls store(run, sums) for each, where lanes hold the sums
  // of rows lane / 4 and lane / 4 + 8.
  template <class Store>
  __device__ __forceinline__ void multiply(const std::uint8_t* records, const Store& store) {
    const int g = static_cast<int>(threadIdx.x) % kWarpSize / 4;
    const std::uint8_t* first = runs_.first;
    float sums[2] = {};
    RowByteColumns columns;
    int k_tile = runs_.first_k_tile;
    int stage = 0;
    int run = 0;
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      wait_for_copies<kStages - 1>();
      __syncwarp();
      const std::uint8_t* const tiles = ring_ + stage * kStageBytes;
      const int k_bytes = k_tile * Rows::kTileBytes;
      const auto tile = [&](int row) {
        return tiles + row * Rows::kPitch + Rows::misalignment(first + row * runs_.row_bytes + k_bytes);
      };
      multiply_row_bytes<kType>(tile(g), tile(g + 8), records + k_tile * kFixedRecordBytes, columns, sums);
      __syncwarp();  // the stage has been read
      copy_next();
      stage = stage + 1 < kStages ? stage + 1 : 0;
      k_tile += runs_.k_step;
      if (k_tile < runs_.k_tiles) continue;
      k_tile = runs_.first_k_tile;
      first += static_cast<std::int64_t>(runs_.stride) * runs_.row_bytes;
      sum_quarters(sums);
      store(run++, sums);
      sums[0] = sums[1] = 0.0F;
    }
  }

 private:
  __device__ void copy_next() {
    if (copied_ < steps_) {
      ++copied_;
      const std::uint32_t to = shared_address(ring_ + next_stage_ * kStageBytes);
      copies_.copy(next_ + next_k_tile_ * Rows::kTileBytes, runs_.end, to);
      next_stage_ = next_stage_ + 1 < kStages ? next_stage_ + 1 : 0;
      next_k_tile_ += runs_.k_step;
      if (next_k_tile_ >= runs_.k_tiles) {
        next_k_tile_ = runs_.first_k_tile;
        next_ += static_cast<std::int64_t>(runs_.stride) * runs_.row_bytes;
      }
    }
    commit_copies();
  }

  RowByteRuns runs_;
  Rows copies_;
  std::uint8_t* ring_;
  int steps_;
  const std::uint8_t* next_;
  int next_k_tile_;
  int next_stage_ = 0;
  int copied_ = 0;
};

}  // namespace thalweg::cu
