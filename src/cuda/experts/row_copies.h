#pragma once

// Copies of raw weights from rows of an expert to shared memory, by one warp: a slice of each of a few rows.

#include <algorithm>

#include "cuda/common/async_copy.h"
#include "cuda/common/warp.h"
#include "cuda/experts/formats/formats.h"

namespace thalweg::cu {

// kAlignedRows: rows begin at multiples of 16 bytes.
template <DType kType, int kRows, int kSliceWeights, bool kAlignedRows>
class RowCopies {
 public:
  static constexpr int kSliceBytes = kSliceWeights / kBlockWeights<kType> * kBlockBytes<kType>;
  // Slices begin at multiples of this many bytes. The copies take any 16 bytes that hold some of a slice.
  static constexpr int kStep = kAlignedRows ? std::min(kSliceBytes & -kSliceBytes, 16) : PackedWeights<kType>::kAlign;
  static constexpr int kPieces = (kSliceBytes + 31 - kStep) / 16;  // of 16 bytes, of a row
  // From row to row in shared memory. Odd multiples of 16 bytes: rows then begin in different banks.
  static constexpr int kPitch = 16 * (kPieces | 1);

  // Weights of an expert with `rows` rows of k.
  __device__ void begin(const std::uint8_t* weights, std::int64_t row_bytes, int rows, int k, int lane) {
    move_to(weights);
    row_bytes_ = row_bytes;
    rows_ = rows;
    row_length_ = k / kBlockWeights<kType> * kBlockBytes<kType>;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      from_[i] = static_cast<std::int32_t>(row_of(i, lane) * row_bytes) + (lane + i * kWarpSize) % kPieces * 16;
    }
  }
  // On to another expert.
  __device__ void move_to(const std::uint8_t* weights) {
    weights_ = weights;
    // Or the compiler works the address out again for each copy.
    asm volatile("" : "+l"(weights_));
  }

  // A slice of kRows rows from first_row on. Rows beyond the last are that one again. Only the last slice may end
  // beyond the rows' ends.
  __device__ void copy(int first_row, int slice, bool last, std::uint32_t to, int lane) const {
    const bool whole = !last || (kAlignedRows && (slice * kSliceBytes & -16) + 16 * kPieces <= row_length_);
    if (whole && first_row + kRows <= rows_) {
      const std::uint8_t* from = weights_ + first_row * row_bytes_ + static_cast<std::int64_t>(slice) * kSliceBytes;
      if constexpr (kAlignedRows) from -= off(0, slice);
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if (kRows * kPieces % kWarpSize != 0 && row_of(i, lane) >= kRows) break;
        // Pieces of 16 bytes are counted from where the row's first begins.
        copy_16_bytes(to + place_of(i, lane), kAlignedRows ? from + from_[i] : aligned(from + from_[i]));
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i) {
        if (row_of(i, lane) >= kRows) break;
        const int c = (lane + i * kWarpSize) % kPieces * 16;
        const std::uint8_t* from = slice_of(first_row + row_of(i, lane), slice);
        const int left = row_length_ - slice * kSliceBytes - c + static_cast<int>(from - aligned(from));
        copy_piece(to + place_of(i, lane), aligned(from) + c, left);
      }
    }
  }

  // How far beyond the beginning of its place in shared memory a row's slice begins.
  __device__ int off(int row, int slice) const {
    if constexpr (kAlignedRows) return kSliceBytes * slice & 15;
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(slice_of(row, slice)) & 15);
  }

 private:
  static constexpr int kCopies = (kRows * kPieces + kWarpSize - 1) / kWarpSize;  // of a lane

  __device__ static int row_of(int i, int lane) { return (lane + i * kWarpSize) / kPieces; }
  __device__ static std::uint32_t place_of(int i, int lane) {
    const int piece = lane + i * kWarpSize;
    return static_cast<std::uint32_t>(16 * (kPitch == 16 * kPieces ? piece : piece + piece / kPieces));
  }
  __device__ static const std::uint8_t* aligned(const std::uint8_t* at) {
    return at - (reinterpret_cast<std::uintptr_t>(at) & 15);
  }
  __device__ const std::uint8_t* slice_of(int row, int slice) const {
    return weights_ + min(row, rows_ - 1) * row_bytes_ + static_cast<std::int64_t>(slice) * kSliceBytes;
  }

  const std::uint8_t* weights_;
  std::int64_t row_bytes_;
  int rows_;
  int row_length_;  // bytes
  std::int32_t from_[kCopies];
};

}  // namespace thalweg::cu
