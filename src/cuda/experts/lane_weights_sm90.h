#pragma once

// A tile's weights on their way through shared memory into registers.

#include <cstdint>

#include "cuda/experts/formats/formats.h"
#include "cuda/experts/formats/half_weights.h"
#include "cuda/experts/tiled.h"

namespace thalweg::cu::sm90 {

// How weights of a format pass through shared memory.
template <DType kType>
struct WeightRing {
  static constexpr bool kBlocks = is_block_format(kType);
  static constexpr int kBlock = dtype_info(kType).block_size;
  static constexpr int kBlockBytes = dtype_info(kType).block_bytes;
  static constexpr int kStageColumns = kBlocks ? 256 : 128;  // weights of a row per stage
  static constexpr int kStageRowBytes = static_cast<int>(bytes_of(kType, kStageColumns));
  // A row's bytes of a stage begin at multiples of kAlign; at multiples of kStageAlign in rows that begin at multiples
  // of 16. Copies begin at multiples of 16.
  static constexpr int kAlign = kBlocks ? PackedWeights<kType>::kAlign : 16;
  static constexpr int kStageAlign = (kStageRowBytes & -kStageRowBytes) < 16 ? kStageRowBytes & -kStageRowBytes : 16;
  __host__ __device__ static constexpr int row_bytes(int align) {
    return (kStageRowBytes + (16 - align) + 15) / 16 * 16;
  }
};

// A lane's weights of a run of 128 columns of a row: 32 consecutive ones, in registers.
template <DType kType>
class LaneWeights {
  using Ring = WeightRing<kType>;
  using Packed = PackedWeights<kType>;
  static constexpr bool kWholeBlocks = Ring::kBlock == 256;
  static constexpr int kRunBytes = kWholeBlocks ? 0 : kStagedRun / Ring::kBlock * Ring::kBlockBytes;
  static constexpr std::uint32_t kPhases = Ring::kAlign == 16 ? 0 : 15;

 public:
  // offset: of the row in a stage, in bytes. phase: of the row's address, modulo 16. quarter: of the run, 0..3. zero:
  // as of Mxfp4Table.
  __device__ LaneWeights(int offset, std::uint32_t phase, int quarter, std::uint32_t zero)
      : offset_(offset + (kWholeBlocks ? 0 : quarter * (kRunBytes / 4))),
        phase_(phase),
        quarter_(quarter),
        zero_(zero) {
    // Runs and stages are multiples of 4 bytes, so that all blocks of a lane begin at the same byte of a word.
    if constexpr (Ring::kAlign == 1) {
      static_assert(kRunBytes % 4 == 0 && Ring::kStageRowBytes % 4 == 0);
      byte_in_word_ = static_cast<int>((phase_ + static_cast<std::uint32_t>(offset_)) & 3U);
      offset_ -= byte_in_word_;
    }
  }
  __device__ void read(const std::uint8_t* stage, int k_stage, int run) {
    const auto begin = static_cast<std::uint32_t>(k_stage * Ring::kStageRowBytes);
    const std::uint8_t* block = stage + offset_ + ((phase_ + begin) & kPhases) + run * kRunBytes;
    if constexpr (Ring::kAlign == 1) {
      packed_ = Packed::read_words(block, byte_in_word_, zero_);
    } else {
      packed_ = Packed::read(block, 4 * run + quarter_);
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
  int offset_;
  std::uint32_t phase_;
  int quarter_;
  std::uint32_t zero_;
  int byte_in_word_ = 0;
  Packed packed_;
};

}  // namespace thalweg::cu::sm90
