#pragma once

// Copies a K tile of raw weights of each of a few rows of an expert to shared memory, by one warp.

#include <algorithm>

#include "cuda/common/async_copy.h"
#include "cuda/common/warp.h"
#include "cuda/experts/formats/formats.h"

namespace thalweg::cu {

// kAlignedRows: rows begin at multiples of 16 bytes.
template <DType kType, int kRows, int kTileK, bool kAlignedRows>
class RowCopies {
 public:
  static constexpr int kTileBytes = kTileK / kBlockWeights<kType> * kBlockBytes<kType>;
  // K tiles begin at multiples of this many bytes. The copies cover every 16 bytes that hold some of a K tile.
  static constexpr int kStep = kAlignedRows ? std::min(kTileBytes & -kTileBytes, 16) : PackedWeights<kType>::kAlign;
  static constexpr int kVectors = (kTileBytes + 31 - kStep) / 16;  // vectors of 16 bytes per row
  // Bytes between rows in shared memory: an odd multiple of 16, so that rows begin in different banks.
  static constexpr int kPitch = 16 * (kVectors | 1);

  // Starts with the weights of an expert with `rows` rows of k.
  __device__ void begin(const std::uint8_t* weights, std::int64_t row_bytes, int rows, int k, int lane) {
    move_to(weights);
    row_bytes_ = row_bytes;
    rows_ = rows;
    row_length_ = k / kBlockWeights<kType> * kBlockBytes<kType>;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      from_[i] = static_cast<std::int32_t>(row_of(i, lane) * row_bytes) + (lane + i * kWarpSize) % kVectors * 16;
    }
  }
  // Moves on to another expert.
  __device__ void move_to(const std::uint8_t* weights) {
    weights_ = weights;
    // Else the compiler computes the address again for each copy.
    asm volatile("" : "+l"(weights_));
  }

  // Copies a K tile of kRows rows from first_row on. Rows beyond the last repeat it. Only the last K tile may end
  // beyond the rows.
  __device__ void copy(int first_row, int k_tile, bool last, std::uint32_t to, int lane) const {
    const bool whole = !last || (kAlignedRows && (k_tile * kTileBytes & -16) + 16 * kVectors <= row_length_);
    if (whole && first_row + kRows <= rows_) {
      const std::uint8_t* from = weights_ + first_row * row_bytes_ + static_cast<std::int64_t>(k_tile) * kTileBytes;
      if constexpr (kAlignedRows) from -= misalignment(0, k_tile);
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if (kRows * kVectors % kWarpSize != 0 && row_of(i, lane) >= kRows) break;
        // Vectors are counted from the beginning of the first row.
        copy_16_bytes(to + shared_offset(i, lane), kAlignedRows ? from + from_[i] : aligned(from + from_[i]));
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i) {
        if (row_of(i, lane) >= kRows) break;
        const int c = (lane + i * kWarpSize) % kVectors * 16;
        const std::uint8_t* from = k_tile_of(first_row + row_of(i, lane), k_tile);
        const int left = row_length_ - k_tile * kTileBytes - c + static_cast<int>(from - aligned(from));
        copy_piece(to + shared_offset(i, lane), aligned(from) + c, left);
      }
    }
  }

  // The bytes between the row's offset in shared memory and the first byte of its K tile.
  __device__ int misalignment(int row, int k_tile) const {
    if constexpr (kAlignedRows) return kTileBytes * k_tile & 15;
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(k_tile_of(row, k_tile)) & 15);
  }

 private:
  static constexpr int kCopies = (kRows * kVectors + kWarpSize - 1) / kWarpSize;  // per lane

  __device__ static int row_of(int i, int lane) { return (lane + i * kWarpSize) / kVectors; }
  __device__ static std::uint32_t shared_offset(int i, int lane) {
    const int vector = lane + i * kWarpSize;
    return static_cast<std::uint32_t>(16 * (kPitch == 16 * kVectors ? vector : vector + vector / kVectors));
  }
  __device__ static const std::uint8_t* aligned(const std::uint8_t* at) {
    return at - (reinterpret_cast<std::uintptr_t>(at) & 15);
  }
  __device__ const std::uint8_t* k_tile_of(int row, int k_tile) const {
    return weights_ + min(row, rows_ - 1) * row_bytes_ + static_cast<std::int64_t>(k_tile) * kTileBytes;
  }

  const std::uint8_t* weights_;
  std::int64_t row_bytes_;
  int rows_;
  int row_length_;  // in bytes
  std::int32_t from_[kCopies];
};

}  // namespace thalweg::cu
