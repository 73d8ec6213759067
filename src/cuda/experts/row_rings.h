#pragma once

// The ring in shared memory through which a warp reads raw rows of one expert: a stage per pass. No other warp waits
// for it.

#include <cstdint>

#include "cuda/common/async_copy.h"
#include "cuda/common/mbarrier.h"
#include "cuda/common/warp.h"
#include "cuda/experts/row_products.h"

namespace thalweg::cu {

// The rows of a warp. `step` = 32 / lanes rows are multiplied at a time; a pass is two steps.
constexpr int kPassSteps = 2;
struct PassRows {
  const std::uint8_t* from;
  std::int64_t row_bytes;  // between rows
  int rows;
  int lanes;
  int step;

  __device__ int pass_rows() const { return kPassSteps * step; }
  __device__ int row_in_step() const {
    return static_cast<int>(threadIdx.x % kWarpSize * static_cast<unsigned>(step) / kWarpSize);
  }
};

template <DType kType>
constexpr int kMatvecStages = kBlockBytes<kType> >= kBlockWeights<kType> ? 2 : 3;
constexpr int kRowRingWarps = 8;  // the most per block
__host__ __device__ constexpr int row_pitch(int segment_bytes) { return (segment_bytes + 15 + 15) / 16 * 16; }

// Where a lane's weights are in a stage. Contiguous rows are one copy; others begin every row_pitch() bytes.
template <DType kType>
struct StageOffsets {
  int segment_bytes;
  int pitch;  // between copies; 0: one copy
  int step_bytes;
  int even_at;
  int odd_at;
  int sub_block;

  __device__ StageOffsets(const PassRows& rows, const LaneBlocks<kType>& lane_blocks, int k_blocks, int first) {
    segment_bytes = min(kLaneBlocks * rows.lanes, k_blocks - first) / LaneBlocks<kType>::kSubBlocks *
                    LaneBlocks<kType>::kFormatBlockBytes;
    pitch = rows.row_bytes == segment_bytes ? 0 : row_pitch(segment_bytes);
    const int row_bytes = pitch == 0 ? segment_bytes : pitch;
    step_bytes = rows.step * row_bytes;
    const int row_at = rows.row_in_step() * row_bytes - begin_bytes(first);
    even_at = row_at + lane_blocks.even_at();
    odd_at = row_at + lane_blocks.odd_at();
    sub_block = lane_blocks.sub_block();
  }
  // The offset of the segment in a row.
  __device__ static int begin_bytes(int first) {
    return first / LaneBlocks<kType>::kSubBlocks * LaneBlocks<kType>::kFormatBlockBytes;
  }
};

// Both kinds have
//   init(ring, stage_bytes)                    takes the warp's own kMatvecStages<kType> stages
//   begin(rows, lane_blocks, k_blocks, first)  starts the copies of the first passes, from block `first` of each row on
//   products(even_x, odd_x, sums)              the lane's products of the next pass; starts the copies of a later one

// By cp.async, 16 bytes at a time. Segments may begin at any byte: in shared memory they keep their address modulo 16,
// contiguous rows that of the first.
template <DType kType>
class AsyncCopyRing {
 public:
  __device__ void init(std::uint8_t* ring, int stage_bytes) {
    ring_ = ring;
    end_ = kMatvecStages<kType> * stage_bytes;
    stage_bytes_ = stage_bytes;
  }
  __device__ void begin(const PassRows& rows, const LaneBlocks<kType>& lane_blocks, int k_blocks, int first) {
    const StageOffsets<kType> offsets(rows, lane_blocks, k_blocks, first);
    segment_bytes_ = offsets.segment_bytes;
    pitch_ = offsets.pitch;
    step_bytes_ = offsets.step_bytes;
    even_at_ = offsets.even_at;
    odd_at_ = offsets.odd_at;
    sub_block_ = offsets.sub_block;
    next_ = rows.from + StageOffsets<kType>::begin_bytes(first);
    row_bytes_ = rows.row_bytes;
    rows_ = rows.rows;
    pass_rows_ = rows.pass_rows();
    step_ = rows.step;
    begins_ = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(next_)) +
              (pitch_ == 0 ? 0U : static_cast<unsigned>(rows.row_in_step() * row_bytes_));
    stage_ = 0;
    free_ = 0;
    __syncwarp();  // the ring's contents have been read
#pragma unroll 1
    for (int i = 1; i < kMatvecStages<kType>; ++i) push();
  }
  __device__ void products(const FixedBlock& even_x, const FixedBlock& odd_x, float (&sums)[kPassSteps]) {
    wait_for_copies<kMatvecStages<kType> - 2>();
    __syncwarp();
    push();
    const std::uint8_t* const stage = ring_ + stage_;
#pragma unroll
    for (int i = 0; i < kPassSteps; ++i) {
      const unsigned begins = begins_ + (pitch_ == 0 ? 0U : static_cast<unsigned>(i * step_ * row_bytes_));
      const std::uint8_t* const at = stage + i * step_bytes_ + (begins & 15U);
      sums[i] = PackedPair<kType>::read(at + even_at_, at + odd_at_, sub_block_).product(sub_block_, even_x, odd_x);
    }
    begins_ += static_cast<unsigned>(pass_rows_ * row_bytes_);
    stage_ = stage_ + stage_bytes_ < end_ ? stage_ + stage_bytes_ : 0;
  }

 private:
  __device__ void push() {
    const int count = min(pass_rows_, rows_);
    const int copies = pitch_ == 0 ? min(count, 1) : count;
    const int bytes = pitch_ == 0 ? count * segment_bytes_ : segment_bytes_;
    std::uint32_t to = shared_address(ring_) + static_cast<std::uint32_t>(free_);
    const std::uint8_t* from = next_;
#pragma unroll 1
    for (int copy = 0; copy < copies; ++copy) {
      copy_bytes(to, from, bytes);
      to += static_cast<std::uint32_t>(pitch_);
      from += row_bytes_;
    }
    commit_copies();
    next_ += pass_rows_ * row_bytes_;
    rows_ -= pass_rows_;
    free_ = free_ + stage_bytes_ < end_ ? free_ + stage_bytes_ : 0;
  }

  const std::uint8_t* next_;  // the next copy's source
  int rows_;                  // rows left to copy
  int free_;                  // its stage
  int stage_;                 // the next stage to read
  unsigned begins_;           // address of the next pass, modulo 2^32
  int even_at_;
  int odd_at_;
  int sub_block_;
  std::uint8_t* ring_;
  int end_;
  int stage_bytes_;
  int segment_bytes_;
  int step_bytes_;
  int pitch_;
  int step_;
  int pass_rows_;
  std::int64_t row_bytes_;
};

// By bulk copies: compute capability 9.0, all copies at multiples of 16 bytes.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <DType kType>
class BulkCopyRing : public AsyncCopyRing<kType> {};
#else
template <DType kType>
class BulkCopyRing {
 public:
  __device__ void init(std::uint8_t* ring, int stage_bytes) {
    __shared__ std::uint64_t barriers[kRowRingWarps][kMatvecStages<kType>];
    const int thread = static_cast<int>(threadIdx.x);
    ring_ = ring;
    stage_bytes_ = stage_bytes;
    full_ = {shared_address(barriers[thread / kWarpSize])};
    read_at_ = 0;
    fill_at_ = 0;
    parity_ = 0;
    if (thread % kWarpSize == 0) {
#pragma unroll
      for (int i = 0; i < kMatvecStages<kType>; ++i) full_[i].init(1);
      fence_mbarrier_init();
    }
  }
  __device__ void begin(const PassRows& rows, const LaneBlocks<kType>& lane_blocks, int k_blocks, int first) {
    const StageOffsets<kType> offsets(rows, lane_blocks, k_blocks, first);
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    segment_bytes_ = offsets.segment_bytes;
    step_bytes_ = offsets.step_bytes;
    even_at_ = offsets.even_at;
    odd_at_ = offsets.odd_at;
    sub_block_ = offsets.sub_block;
    // Each lane copies one row, or lane 0 copies all.
    own_row_ = offsets.pitch == 0 && lane > 0 ? kWarpSize : lane;
    own_rows_ = offsets.pitch == 0 ? kWarpSize : 1;
    own_to_ = shared_address(ring_) + static_cast<std::uint32_t>(lane * offsets.pitch);
    next_ = rows.from + StageOffsets<kType>::begin_bytes(first) + (offsets.pitch == 0 ? 0 : lane * rows.row_bytes);
    rows_ = rows.rows;
    pass_rows_ = rows.pass_rows();
    next_step_ = pass_rows_ * rows.row_bytes;
    __syncwarp();  // barriers are initialized, and the ring's contents have been read
#pragma unroll 1
    for (int i = 1; i < kMatvecStages<kType>; ++i) push();
  }
  __device__ void products(const FixedBlock& even_x, const FixedBlock& odd_x, float (&sums)[kPassSteps]) {
    Mbarrier{full_.address + read_at_}.wait(parity_);
    __syncwarp();  // the last pass has been read
    push();
    const std::uint8_t* const stage = ring_ + static_cast<int>(read_at_ / MbarrierArray::kBytes) * stage_bytes_;
#pragma unroll
    for (int i = 0; i < kPassSteps; ++i) {
      const std::uint8_t* const at = stage + i * step_bytes_;
      sums[i] = PackedPair<kType>::read(at + even_at_, at + odd_at_, sub_block_).product(sub_block_, even_x, odd_x);
    }
    read_at_ = after(read_at_);
    if (read_at_ == 0) parity_ ^= 1U;
  }

 private:
  // Stages are counted in bytes of their barriers, which saves a multiplication per pass.
  __device__ static std::uint32_t after(std::uint32_t at) {
    return at < MbarrierArray::kBytes * (kMatvecStages<kType> - 1) ? at + MbarrierArray::kBytes : 0;
  }
  // All lanes count stages; lanes with rows copy.
  __device__ void push() {
    const int count = min(pass_rows_, rows_);
    if (count <= 0) return;
    const Mbarrier barrier{full_.address + fill_at_};
    if (own_row_ < count) {
      if (own_row_ == 0) barrier.arrive_expect_tx(static_cast<std::uint32_t>(count * segment_bytes_));
      bulk_copy(own_to_ + fill_at_ / MbarrierArray::kBytes * static_cast<std::uint32_t>(stage_bytes_), next_,
                static_cast<std::uint32_t>(min(own_rows_, count) * segment_bytes_), barrier);
    }
    next_ += next_step_;
    rows_ -= pass_rows_;
    fill_at_ = after(fill_at_);
  }

  const std::uint8_t* next_;  // source of the lane's next copy
  int rows_;                  // rows left to copy
  std::uint32_t fill_at_;     // of the stage to fill next
  std::uint32_t read_at_;     // of the stage to read next
  std::uint32_t parity_;
  int own_row_;
  int own_rows_;
  std::uint32_t own_to_;
  int even_at_;
  int odd_at_;
  int sub_block_;
  std::uint8_t* ring_;
  MbarrierArray full_;
  int stage_bytes_;
  int segment_bytes_;
  int step_bytes_;
  int pass_rows_;
  std::int64_t next_step_;
};
#endif

}  // namespace thalweg::cu
