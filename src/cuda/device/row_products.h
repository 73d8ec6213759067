#pragma once

// Products of some rows of a matrix of any format with one row of activations in fixed point, by one warp: weights go
// from memory to registers as they lie there, all loads of four rows under way at once.

#include "cuda/device/fixed_units.h"
#include "cuda/device/warp.h"
#include "cuda/device/weights.h"

namespace thalweg::cu {

// Matrices of one format, one for each expert.
struct WeightRows {
  const std::uint8_t* data = nullptr;
  std::int64_t expert_bytes = 0;  // from matrix to matrix
  std::int64_t row_bytes = 0;     // from row to row
  DType type = DType::kF32;
};

// body.operator()<kType>() for the format of weights.
template <class Body>
__device__ inline void with_weights(DType type, Body body) {
  switch (type) {
    case DType::kF32:
      return body.template operator()<DType::kF32>();
    case DType::kF16:
      return body.template operator()<DType::kF16>();
    case DType::kBF16:
      return body.template operator()<DType::kBF16>();
    case DType::kQ4_0:
      return body.template operator()<DType::kQ4_0>();
    case DType::kQ4_1:
      return body.template operator()<DType::kQ4_1>();
    case DType::kQ5_0:
      return body.template operator()<DType::kQ5_0>();
    case DType::kQ5_1:
      return body.template operator()<DType::kQ5_1>();
    case DType::kQ8_0:
      return body.template operator()<DType::kQ8_0>();
    case DType::kQ2_K:
      return body.template operator()<DType::kQ2_K>();
    case DType::kQ3_K:
      return body.template operator()<DType::kQ3_K>();
    case DType::kQ4_K:
      return body.template operator()<DType::kQ4_K>();
    case DType::kQ5_K:
      return body.template operator()<DType::kQ5_K>();
    case DType::kQ6_K:
      return body.template operator()<DType::kQ6_K>();
    case DType::kIQ4_NL:
      return body.template operator()<DType::kIQ4_NL>();
    case DType::kIQ4_XS:
      return body.template operator()<DType::kIQ4_XS>();
    case DType::kMXFP4:
      return body.template operator()<DType::kMXFP4>();
    case DType::kI32:
      break;
  }
}

// A lane takes two units of 32 weights of a row at a time, so that this many lanes of a warp share a row.
constexpr int kRowUnits = 2;
__host__ __device__ constexpr int row_lanes(int units) {
  return units <= 8 * kRowUnits ? 8 : (units <= 16 * kRowUnits ? 16 : 32);
}

constexpr int kRowPasses = 4;

// sums[i] = row (first_row + i row_step) . activations, the same in all lanes of a row. `matrix` has `rows` rows; those
// beyond are the last again.
template <DType kType>
__device__ inline void row_products(const std::uint8_t* matrix, std::int64_t row_bytes, int rows, int first_row,
                                    int row_step, const FixedUnit* x, int units, int lanes, float (&sums)[kRowPasses]) {
  constexpr int kUnitBytes = kBlockBytes<kType> * (kBlockWeights<kType> > 1 ? 1 : 32);
  constexpr int kParts = kBlockWeights<kType> > 1 ? kBlockWeights<kType> / 32 : 1;  // units of a block
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const std::uint8_t* row[kRowPasses];
#pragma unroll
  for (int i = 0; i < kRowPasses; ++i) {
    row[i] = matrix + min(first_row + i * row_step, rows - 1) * row_bytes;
    sums[i] = 0.0F;
  }
  for (int first = 0; first < units; first += kRowUnits * lanes) {
    // Neighbouring units of a block have bytes in common, blocks of one unit are best read side by side. Lanes beyond
    // the end read the last units again, and count for nothing.
    int unit[kRowUnits];
    FixedUnit own[kRowUnits];
#pragma unroll
    for (int j = 0; j < kRowUnits; ++j) {
      const int wanted = first + (kParts > 1 ? kRowUnits * lane + j : lane + j * lanes);
      unit[j] = min(wanted, kParts > 1 ? units - kRowUnits + j : units - 1);
      own[j] = x[unit[j]];
      if (wanted >= units) own[j].scale = 0.0F;
    }
#pragma unroll
    for (int i = 0; i < kRowPasses; ++i) {
#pragma unroll
      for (int j = 0; j < kRowUnits; ++j) {
        const int at = kParts > 1 ? unit[0] / kParts : unit[j];
        // Written so that it shows that the first is even.
        const int part = kParts > 1 ? unit[0] % kParts / kRowUnits * kRowUnits + j : 0;
        const auto packed = PackedWeights<kType>::read(row[i] + at * kUnitBytes, part);
        sums[i] = fmaf(own[j].scale, unit_product<kType>(packed, own[j]), sums[i]);
      }
    }
  }
  for (int distance = 1; distance < lanes; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kRowPasses; ++i) sums[i] += __shfl_xor_sync(0xFFFFFFFFU, sums[i], distance);
  }
}

// Asks for the lines of some bytes from memory, by `threads` threads of which this one is the `thread`-th.
__device__ inline void prefetch_to_l2(const std::uint8_t* from, std::int64_t bytes, int thread, int threads) {
  constexpr int kLine = 128;
  for (std::int64_t at = kLine * thread; at < bytes; at += kLine * threads) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
  }
}

}  // namespace thalweg::cu
