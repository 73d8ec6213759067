#pragma once

// Products of some rows of a matrix of any format with one row of activations in fixed point, by one warp.

#include "cuda/device/async_copy.h"
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

// Raw rows go through a ring of stages in shared memory that a warp has to itself, a chunk of some whole rows at a
// time, which lie together in memory. Copies know nothing of formats, and none of them waits for another warp.
constexpr int kMostRingStages = 5;
constexpr int kRingStages = 3;

// As many rows as fit into a stage: a power of two, at least those that a warp works on at a time.
constexpr int chunk_rows(std::int64_t row_bytes, int lanes, int most) {
  constexpr std::int64_t kUsualBytes = 2304;  // two rows of 2048 weights of Q4_K
  int rows = kWarpSize / lanes;
  while (2 * rows <= most && 2 * rows * row_bytes <= kUsualBytes) rows *= 2;
  return rows;
}
// A chunk may begin at any byte of 16.
constexpr int stage_bytes(std::int64_t row_bytes, int rows) {
  return static_cast<int>((rows * row_bytes + 15 + 15) / 16 * 16);
}

class RowRing {
 public:
  __device__ RowRing(std::uint8_t* memory, int stage_bytes, int stages)
      : memory_(memory), stage_bytes_(stage_bytes), stages_(stages) {}

  // Begins the copy of the next chunk.
  __device__ __forceinline__ void push(const std::uint8_t* from, int bytes) {
    const int off = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) & 15);
    const int begin = 16 * (static_cast<int>(threadIdx.x) % kWarpSize);
    const int end = off + bytes;
    const std::uint8_t* const source = from - off + begin;
    const std::uint32_t to = shared_address(memory_ + pushed_ * stage_bytes_ + begin);
    if ((end & 15) == 0) {
#pragma unroll 4
      for (int at = 0; at < end - begin; at += 16 * kWarpSize) {
        copy_16_bytes(to + static_cast<std::uint32_t>(at), source + at);
      }
    } else {
      for (int at = 0; at < end - begin; at += 16 * kWarpSize) {
        copy_piece(to + static_cast<std::uint32_t>(at), source + at, end - begin - at);
      }
    }
    push_nothing();
  }
  // Counts as a chunk: as many are pushed as are popped.
  __device__ __forceinline__ void push_nothing() {
    commit_copies();
    if (++pushed_ == stages_) pushed_ = 0;
  }
  // Waits for the oldest chunk, which comes from `from`, with stages - 1 pushed; the one before it may be overwritten.
  __device__ __forceinline__ const std::uint8_t* pop(const std::uint8_t* from) {
    if (stages_ == kRingStages) {
      wait_for_copies<kRingStages - 2>();
    } else {
      wait_for_copies<kMostRingStages - 2>();
    }
    __syncwarp();
    const std::uint8_t* const chunk = memory_ + popped_ * stage_bytes_ + (reinterpret_cast<std::uintptr_t>(from) & 15);
    if (++popped_ == stages_) popped_ = 0;
    return chunk;
  }

 private:
  std::uint8_t* memory_;
  int stage_bytes_;
  int stages_;
  int pushed_ = 0;
  int popped_ = 0;
};

// Two neighbouring units of one row and their activations, of which `scales` are the scales.
template <DType kType>
__device__ inline float pair_product(const std::uint8_t* first, const std::uint8_t* second, int part,
                                     const FixedUnit (&x)[kRowUnits], const float (&scales)[kRowUnits]) {
  if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    // Both have the same 32 bytes: one the low, one the high halves, and these stay where they are. Their scales and
    // minimums are neighbours too.
    std::uint32_t head[4];
    read_words<16>(first, head);
    const int quarter = part / 2;
    const std::uint32_t a = head[1] >> (quarter % 2 * 16);
    const std::uint32_t b = head[2] >> (quarter % 2 * 16);
    const std::uint32_t c = head[3] >> (quarter % 2 * 16);
    // The lanes of a warp have all quarters; the compiler would branch around everything that follows.
    std::uint32_t upper = quarter < 2 ? 0U : 0xFFFFFFFFU;
    asm("" : "+r"(upper));
    const std::uint32_t factors = (a & 0x3F3FU & ~upper) | (((c & 0x0F0FU) | (a >> 2 & 0x3030U)) & upper);
    const std::uint32_t minimums = (b & 0x3F3FU & ~upper) | (((c >> 4 & 0x0F0FU) | (b >> 2 & 0x3030U)) & upper);
    std::uint32_t words[8];
    read_words<16>(first + (kType == DType::kQ4_K ? 16 : 48) + quarter * 32, words);
    std::uint32_t fifth[8] = {};
    if constexpr (kType == DType::kQ5_K) read_words<16>(first + 16, fifth);
    int high[kRowUnits] = {};
    int low[kRowUnits] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t even = words[i] & 0x0F0F0F0FU;
      std::uint32_t odd = words[i];
      if constexpr (kType == DType::kQ5_K) {
        even |= (fifth[i] >> part & 0x01010101U) << 4;
        odd = (odd >> 4 & 0x0F0F0F0FU) | (fifth[i] >> part & 0x02020202U) << 3;
      } else {
        odd &= 0xF0F0F0F0U;
      }
      high[0] = dot_four(even, x[0].high[i], high[0]);
      low[0] = dot_four(even, x[0].low[i], low[0]);
      high[1] = dot_four(odd, x[1].high[i], high[1]);
      low[1] = dot_four(odd, x[1].low[i], low[1]);
    }
    constexpr float kOdd = kType == DType::kQ4_K ? 1.0F / 16 : 1.0F;
    float codes = 0.0F;
    float sums = 0.0F;
#pragma unroll
    for (int j = 0; j < kRowUnits; ++j) {
      const auto factor = static_cast<float>(factors >> (8 * j) & 0xFFU);
      const auto minimum = static_cast<float>(minimums >> (8 * j) & 0xFFU);
      const float dot = static_cast<float>(128 * high[j] + low[j]) * (j == 0 ? scales[0] : scales[1] * kOdd);
      codes = fmaf(factor, dot, codes);
      sums = fmaf(minimum, (x[j].sums[0] + x[j].sums[1]) * scales[j], sums);
    }
    return fmaf(low_f16(head[0]), codes, -high_f16(head[0]) * sums);
  } else {
    const auto packed = PackedWeights<kType>::read(first, part);
    const auto next = PackedWeights<kType>::read(second, kBlockWeights<kType> > 32 ? part + 1 : 0);
    return fmaf(scales[0], unit_product<kType>(packed, x[0]), scales[1] * unit_product<kType>(next, x[1]));
  }
}

// Rows that lie together.
struct RawRows {
  const std::uint8_t* from = nullptr;
  int rows = 0;
  int row_bytes = 0;
  int chunk = 0;  // rows
};

// Pushes the chunks of some rows, then those of others.
class RowPushes {
 public:
  __device__ RowPushes(RowRing& ring, const RawRows& first) : ring_(ring), rows_(first) {}

  // What comes behind the rows that are being pushed.
  __device__ __forceinline__ void set_next(const RawRows& next) { next_ = next; }
  __device__ __forceinline__ void operator()() {
    if (rows_.rows == 0) {
      rows_ = next_;
      next_.rows = 0;
    }
    if (rows_.rows == 0) return ring_.push_nothing();
    const int rows = min(rows_.chunk, rows_.rows);
    const int bytes = rows * rows_.row_bytes;
    ring_.push(rows_.from, bytes);
    rows_.from += bytes;
    rows_.rows -= rows;
  }

 private:
  RowRing& ring_;
  RawRows rows_;
  RawRows next_;
};

// products[row] = row . activations for rows that the ring holds or gets: push() has the next chunk of all copied. `x`:
// the activations' units (fixed_units.h).
template <DType kType, int kAtOnce>
__device__ __forceinline__ void row_products(RowRing& ring, RowPushes& push, const RawRows& rows, const uint4* x,
                                             int units, int lanes, float* products) {
  constexpr int kUnitBytes = kBlockBytes<kType> * (kBlockWeights < kType >> 1 ? 1 : 32);
  constexpr int kParts = kBlockWeights < kType >> 1 ? kBlockWeights<kType> / 32 : 1;  // units of a block
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int row_in_pass = static_cast<int>(threadIdx.x) % kWarpSize / lanes;
  const int row_step = kWarpSize / lanes;
  const int slice = kRowUnits * lanes;  // units that the lanes take at a time
  FixedUnit own[kRowUnits];
  float scales[kRowUnits];
  int part = 0;
  int offsets[kRowUnits];
  for (int done = 0; done < rows.rows; done += rows.chunk) {
    const std::uint8_t* const raw = ring.pop(rows.from + done * rows.row_bytes);
    push();
    for (int first = 0; first < units; first += slice) {
      if (done == 0 || units > slice) {
        // Neighbouring units of a block have bytes in common, blocks of one unit are best read side by side. Lanes
        // beyond the end read the last units again, and count for nothing.
        int unit[kRowUnits];
#pragma unroll
        for (int j = 0; j < kRowUnits; ++j) {
          const int wanted = first + (kParts > 1 ? kRowUnits * lane + j : lane + j * lanes);
          unit[j] = min(wanted, kParts > 1 ? units - kRowUnits + j : units - 1);
          own[j] = read_unit(x, units, unit[j]);
          scales[j] = wanted < units ? own[j].scale : 0.0F;
          offsets[j] = unit[j] / kParts * kUnitBytes;
        }
        // Written so that it shows that it is even.
        part = kParts > 1 ? unit[0] % kParts / kRowUnits * kRowUnits : 0;
      }
#pragma unroll kAtOnce
      for (int row = row_in_pass; row < rows.chunk; row += row_step) {
        const std::uint8_t* const at = raw + row * rows.row_bytes;
        float sum = pair_product<kType>(at + offsets[0], at + offsets[1], part, own, scales);
        sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
        sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 4);
        if (lanes > 8) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 8);
        if (lanes > 16) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 16);
        if (lane == 0) products[done + row] = first == 0 ? sum : products[done + row] + sum;
      }
    }
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
