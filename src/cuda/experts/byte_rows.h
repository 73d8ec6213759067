#pragma once

// K tiles of 256 weights of 16 rows, copied as they are to shared memory for byte_products.h and row_bytes.h.

#include <cstdint>

#include "cuda/common/async_copy.h"
#include "cuda/common/warp.h"
#include "cuda/experts/fixed_records.h"
#include "cuda/experts/formats/formats.h"

namespace thalweg::cu {

// Copies a K tile of 16 rows of a matrix to shared memory, by a warp.
template <DType kType>
struct ByteRows {
  static constexpr int kRows = 16;
  static constexpr int kTileBytes = kFixedTileK / kBlockWeights<kType> * kBlockBytes<kType>;
  static constexpr bool kShifted = kTileBytes % 16 != 0;  // K tiles begin at multiples of two bytes
  static constexpr int kVectors = kShifted ? (kTileBytes + 29) / 16 : kTileBytes / 16;
  // An odd multiple of 16, so that rows begin in different banks.
  static constexpr int kPitch = 16 * (kVectors | 1);
  static constexpr int kBytes = kRows * kPitch;
  static constexpr int kCopies = (kRows * kVectors + kWarpSize - 1) / kWarpSize;

  std::int32_t from[kCopies];  // the vectors of a lane, from the first row on
  int row_bytes;

  __device__ explicit ByteRows(int bytes) : row_bytes(bytes) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int vector = lane + i * kWarpSize;
      from[i] = vector / kVectors * row_bytes + vector % kVectors * 16;
    }
  }
  // rows: the K tile of the first row. end: where the matrices end.
  __device__ void copy(const std::uint8_t* rows, const std::uint8_t* end, std::uint32_t to) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    if (kShifted && rows + ((kRows - 1) * row_bytes + 16 * kVectors) > end) return copy_last(rows, row_bytes, end, to);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int vector = lane + i * kWarpSize;
      if (kRows * kVectors % kWarpSize != 0 && vector >= kRows * kVectors) break;
      copy_16_bytes(to + offset_of(vector), at(rows, i));
    }
  }
  __device__ static int misalignment(const std::uint8_t* row) {
    return kShifted ? static_cast<int>(reinterpret_cast<std::uintptr_t>(row) & 15) : 0;
  }

 private:
  __device__ static std::uint32_t offset_of(int vector) {
    return static_cast<std::uint32_t>(vector / kVectors * (kPitch - 16 * kVectors) + vector * 16);
  }
  // A row's vectors begin at the multiple of 16 before it.
  __device__ const std::uint8_t* at(const std::uint8_t* rows, int i) const {
    return rows + (kShifted ? from[i] - ((from[i] + misalignment(rows)) & 15) : from[i]);
  }
  // Rows whose vectors reach beyond the end of the matrices. Apart, so that it costs other copies no registers.
  static __device__ __noinline__ void copy_last(const std::uint8_t* rows, int row_bytes, const std::uint8_t* end,
                                                std::uint32_t to) {
    for (int vector = static_cast<int>(threadIdx.x) % kWarpSize; vector < kRows * kVectors; vector += kWarpSize) {
      const std::uint8_t* const row = rows + vector / kVectors * row_bytes;
      const std::uint8_t* const from = row - misalignment(row) + vector % kVectors * 16;
      copy_piece(to + offset_of(vector), from < end ? from : rows - misalignment(rows), static_cast<int>(end - from));
    }
  }
};

}  // namespace thalweg::cu
