#pragma once

// A tile's weights on their way through shared memory into registers.

#include <cstdint>

#include "cuda/experts/formats/formats.h"
#include "cuda/experts/tiled.h"

namespace thalweg::cu::sm90 {

// How weights of a format pass through shared memory.
template <DType kType>
struct WeightRing {
  static constexpr bool kBlocks = is_block_format(kType);
  static constexpr int kBlock = dtype_info(kType).block_size;
  static constexpr int kBlockBytes = dtype_info(kType).block_bytes;
  static constexpr int kUnit = kBlocks ? 256 : 128;  // weights of a row per stage
  static constexpr int kUnitBytes = static_cast<int>(bytes_of(kType, kUnit));
  // Units begin at multiples of kAlign, of kUnitAlign in rows that begin at multiples of 16; what is copied, at
  // multiples of 16.
  static constexpr int kAlign = kBlocks ? PackedWeights<kType>::kAlign : 16;
  static constexpr int kUnitAlign = (kUnitBytes & -kUnitBytes) < 16 ? kUnitBytes & -kUnitBytes : 16;
  __host__ __device__ static constexpr int row_bytes(int align) { return (kUnitBytes + (16 - align) + 15) / 16 * 16; }
};

// A row's weights of a run of columns, the 32 that are one lane's, in registers.
template <DType kType>
class RunWeights {
  using Ring = WeightRing<kType>;
  using Packed = PackedWeights<kType>;
  static constexpr bool kWholeBlocks = Ring::kBlock == 256;
  static constexpr int kRunBytes = kWholeBlocks ? 0 : kStagedRun / Ring::kBlock * Ring::kBlockBytes;
  static constexpr std::uint32_t kPhases = Ring::kAlign == 16 ? 0 : 15;

 public:
  // place: of the row in a stage, in bytes. phase: of the row in memory, from a multiple of 16. part: the lane's, 0..3.
  // zero: as of Mxfp4Table.
  __device__ RunWeights(int place, std::uint32_t phase, int part, std::uint32_t zero)
      : place_(place + (kWholeBlocks ? 0 : part * (kRunBytes / 4))), phase_(phase), part_(part), zero_(zero) {
    // Runs and units are multiples of 4 bytes, so a lane's blocks always begin at the same byte of a word.
    if constexpr (Ring::kAlign == 1) {
      static_assert(kRunBytes % 4 == 0 && Ring::kUnitBytes % 4 == 0);
      offset_ = static_cast<int>((phase_ + static_cast<std::uint32_t>(place_)) & 3U);
      place_ -= offset_;
    }
  }
  __device__ void read(const std::uint8_t* stage, int unit, int run) {
    const auto begun = static_cast<std::uint32_t>(unit * Ring::kUnitBytes);
    const std::uint8_t* block = stage + place_ + ((phase_ + begun) & kPhases) + run * kRunBytes;
    if constexpr (Ring::kAlign == 1) {
      packed_ = Packed::read_words(block, offset_, zero_);
    } else {
      packed_ = Packed::read(block, 4 * run + part_);
    }
  }
  // Weights 8 j .. 8 j + 7, as f16 (half_weights.h) or bf16.
  template <bool kHalves>
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    if constexpr (kHalves) {
      eight_halves<kType>(packed_, j, pairs);
    } else {
      packed_.eight(j, pairs);
    }
  }

 private:
  int place_;
  std::uint32_t phase_;
  int part_;
  std::uint32_t zero_;
  int offset_ = 0;
  Packed packed_;
};

}  // namespace thalweg::cu::sm90
