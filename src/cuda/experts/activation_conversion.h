#pragma once

// Converts activations to the 16-bit rows that the matmuls of more than a few tokens read (ActivationOrder).

#include <cstdint>
#include <type_traits>

#include "cuda/common/elements.h"
#include "cuda/common/mma.h"
#include "cuda/common/warp.h"
#include "cuda/experts/activation_records.h"
#include "cuda/experts/expert_lists.h"
#include "cuda/experts/expert_sort.h"

namespace thalweg::cu {

// A thread of the conversion writes kVectorsPerThread vectors of eight values.
constexpr int kVectorsPerThread = 2;
constexpr int kVectorsPerBlock = kPrepareThreads * kVectorsPerThread;

struct Conversion {
  Elements x;
  const float* up = nullptr;  // not null: converts silu(x) * up; both are f32 and contiguous
  int slots = 0;              // 0: x is [T,K]
  std::int64_t rows = 0;
  int k = 0;
  int padded_k = 0;
  std::uint16_t* to = nullptr;
  float* factors = nullptr;  // [rows] if rows are scaled, else null
  ActivationOrder order = ActivationOrder::kRows;

  template <class T>
  __device__ const T* begin(std::int64_t row) const {
    const int r = static_cast<int>(row);  // at most the number of pairs
    return static_cast<const T*>(x.data) + (slots == 0 ? x.offset(r) : x.offset(r / slots, r % slots));
  }
};

// Eight values in the staged order (token_tiles.h): a pair of each quarter of a run.
template <class T>
__device__ inline void read_staged(const Conversion& c, const T* data, int first, float (&values)[8]) {
  const int base = first / kStagedRun * kStagedRun + first % kStagedRun / 4;
  const bool pairs = c.x.fours && base + 98 <= c.k;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int k = base + i * 32;
    float2 pair{};
    if (pairs) {
      pair = load_two(data + k);
    } else {
      if (k < c.k) pair.x = to_f32(data[k]);
      if (k + 1 < c.k) pair.y = to_f32(data[k + 1]);
    }
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

// Columns k to k + 3 of a row that begins at `data`; zeros from K on.
template <class T>
__device__ inline float4 read_four(const Conversion& c, const T* data, std::int64_t row, int k) {
  const bool whole = c.x.fours && k + 4 <= c.k;
  const auto four_of = [&](const auto* from) {
    if (whole) return load_four(from + k);
    const auto read = [&](int i) { return k + i < c.k ? to_f32(from[k + i]) : 0.0F; };
    return float4{read(0), read(1), read(2), read(3)};
  };
  const float4 four = four_of(data);
  if constexpr (std::is_same_v<T, float>) {
    if (c.up != nullptr) {
      const float4 up = four_of(c.up + row * c.k);
      const auto gated = [](float gate, float value) { return __fdividef(gate, 1.0F + __expf(-gate)) * value; };
      return {gated(four.x, up.x), gated(four.y, up.y), gated(four.z, up.z), gated(four.w, up.w)};
    }
  }
  return four;
}

template <class T>
__device__ void convert_vector(const Conversion& c, std::int64_t row, int first) {
  if (row >= c.rows) return;
  const T* data = c.begin<T>(row);
  float values[8];
  if (c.order == ActivationOrder::kTiles) {
    read_staged(c, data, first, values);
  } else {
    const float4 a = read_four(c, data, row, first);
    const float4 b = read_four(c, data, row, first + 4);
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
  }
  uint4 packed;
  packed.x = pack<__nv_bfloat16>(values[0], values[1]);
  packed.y = pack<__nv_bfloat16>(values[2], values[3]);
  packed.z = pack<__nv_bfloat16>(values[4], values[5]);
  packed.w = pack<__nv_bfloat16>(values[6], values[7]);
  *reinterpret_cast<uint4*>(c.to + row * c.padded_k + first) = packed;
}

// ---- scaled rows: a warp converts a K tile

__host__ __device__ inline int k_tiles_of(const Conversion& c) {
  return (c.padded_k + kRecordValues - 1) / kRecordValues;
}
__host__ __device__ inline int rows_per_block(const Conversion& c) {
  const int k_tiles = k_tiles_of(c);
  return k_tiles < kPrepareWarps ? kPrepareWarps / k_tiles : 1;
}

// The lane's eight values of a K tile, in the order of the record.
template <class T>
__device__ inline void read_vector(const Conversion& c, std::int64_t row, int k_tile, float (&values)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const T* data = c.begin<T>(row);
  if (c.order == ActivationOrder::kScaledTiles) {
    return read_staged(c, data, k_tile * kRecordValues + 8 * lane, values);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 read = read_four(c, data, row, k_tile * kRecordValues + record_source(lane, 4 * half));
    const float four[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) values[4 * half + i] = four[record_source(0, i)];
  }
}

// Writes the record of a K tile, by a warp.
__device__ inline void write_record(const float (&values)[8], float factor, std::uint16_t* record) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  std::uint32_t packed[4];
  float sums[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      packed[i] = pack<__half>(values[2 * i] * factor, values[2 * i + 1] * factor);
      const float2 rounded = unpack<__half>(packed[i]);
      sum += rounded.x + rounded.y;
    }
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sums[half] = sum + __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
  }
  *reinterpret_cast<uint4*>(record + 8 * lane) = {packed[0], packed[1], packed[2], packed[3]};
  const std::uint32_t upper = pack<__half>(sums[0], sums[1]);
  const float2 rounded = unpack<__half>(upper);
  const std::uint32_t lower = pack<__half>(sums[0] - rounded.x, sums[1] - rounded.y);
  const int sub_block = lane / 4;  // 32 activations
  const int which = lane % 4;
  if (which > 1) return;
  auto* words = reinterpret_cast<std::uint32_t*>(record + kRecordValues);
  words[sub_block / 2 * 4 + which * 2 + sub_block % 2] = which == 0 ? upper : lower;
}

// Writes the lane's values to a staged row.
__device__ inline void write_staged(const float (&values)[8], float factor, int columns, std::uint16_t* k_tile) {
  const int first = static_cast<int>(threadIdx.x) % kWarpSize * 8;
  if (first >= columns) return;
  uint4 packed;
  packed.x = pack<__half>(values[0] * factor, values[1] * factor);
  packed.y = pack<__half>(values[2] * factor, values[3] * factor);
  packed.z = pack<__half>(values[4] * factor, values[5] * factor);
  packed.w = pack<__half>(values[6] * factor, values[7] * factor);
  *reinterpret_cast<uint4*>(k_tile + first) = packed;
}

// Converts the block's rows; each warp takes one K tile after the other.
template <class T>
__device__ void convert_scaled(const Conversion& c, std::int64_t block) {
  __shared__ unsigned largest[kPrepareWarps];  // as bits, which are in the order of positive floats
  const int thread = static_cast<int>(threadIdx.x);
  const int k_tiles = k_tiles_of(c);
  const std::int64_t first_row = block * rows_per_block(c);
  const int rows = static_cast<int>(min(c.rows - first_row, static_cast<std::int64_t>(rows_per_block(c))));
  if (thread < kPrepareWarps) largest[thread] = 0;
  __syncthreads();
  float values[8];
  for (int i = thread / kWarpSize; i < rows * k_tiles; i += kPrepareWarps) {
    const int row = i / k_tiles;
    read_vector<T>(c, first_row + row, i - row * k_tiles, values);
    float most = 0.0F;
#pragma unroll
    for (const float value : values) most = fmaxf(most, fabsf(value));
    const unsigned bits = __reduce_max_sync(0xFFFFFFFFU, __float_as_uint(most));
    if (thread % kWarpSize == 0) atomicMax(largest + row, bits);
  }
  __syncthreads();
  for (int i = thread / kWarpSize; i < rows * k_tiles; i += kPrepareWarps) {
    const int row = i / k_tiles;
    if (k_tiles > kPrepareWarps)
      read_vector<T>(c, first_row + row, i - row * k_tiles, values);  // else `values` still holds them
    const RecordScaling scaling(largest[row]);
    const int k_tile = i - row * k_tiles;
    if (c.order == ActivationOrder::kScaledTiles) {
      const int first = k_tile * kRecordValues;
      write_staged(values, scaling.factor, c.padded_k - first, c.to + (first_row + row) * c.padded_k + first);
    } else {
      write_record(values, scaling.factor, c.to + ((first_row + row) * k_tiles + k_tile) * kRecordHalves);
    }
    if (i == row * k_tiles && thread % kWarpSize == 0) {
      c.factors[first_row + row] = scaling.inverse;
    }
  }
}

}  // namespace thalweg::cu
