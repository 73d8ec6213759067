#pragma once

// A call of sample_tokens as its kernels see it: settings and weights of a row, the cut that the settings make.

#include <cstdint>

#include "cuda/layers/logit_rows.h"
#include "thalweg/device.h"

namespace thalweg::cu {

// Absent tensors are null; vectors are contiguous.
struct SampleRows {
  const float* logits = nullptr;
  std::int64_t logits_stride = 0;
  const std::int32_t* lengths = nullptr;
  const std::int32_t* history = nullptr;
  std::int64_t history_stride = 0;
  std::int64_t history_slots = 0;
  std::int64_t history_size = 0;
  const std::int32_t* slots = nullptr;
  const float* temperature = nullptr;
  const std::int32_t* top_k = nullptr;
  const float* top_p = nullptr;
  const float* min_p = nullptr;
  const float* repeat_penalty = nullptr;
  const std::int32_t* repeat_last = nullptr;
  const std::uint32_t* seed = nullptr;
  std::int64_t seed_stride = 0;
  const std::uint32_t* allowed = nullptr;
  std::int64_t allowed_stride = 0;
  std::int32_t* tokens = nullptr;
  std::int32_t* fault = nullptr;
  std::uint32_t* keys = nullptr;  // [N,V] of logits after the penalty, where allowed; with one of these and temperature
  int vocabulary = 0;
  int segments = 0;  // of a row
  int run = 0;       // segments of a block that has several
  int runs = 0;      // such blocks of a row

  __device__ int segment_end(int segment) const { return min(vocabulary, (segment + 1) * kSegment); }
  __device__ const float* row(int n) const { return logits + n * logits_stride; }
  __device__ std::uint32_t* row_keys(int n) const { return keys + static_cast<std::int64_t>(n) * vocabulary; }
  __device__ std::uint32_t key(int n, int token) const {
    return keys != nullptr ? row_keys(n)[token] : key_of(row(n)[token]);
  }

  __device__ bool is_allowed(int n, int token) const {
    return allowed == nullptr || (allowed[n * allowed_stride + token / 32] >> token % 32 & 1U) != 0;
  }

  // The row of history; -1: absent, -2: out of range.
  __device__ std::int64_t slot(int n) const {
    const std::int64_t slot = slots != nullptr ? slots[n] : n;
    return slot < -1 || (history != nullptr && slot >= history_slots) ? -2 : slot;
  }
  __device__ bool greedy(int n) const { return temperature == nullptr || !(temperature[n] > 0.0F); }
};

// Weights of a row's tokens: exp((logit - largest) / temperature) times 2^40, rounded. They are integers, so that sums
// do not depend on their order.
class Weights {
 public:
  __device__ Weights(const SampleRows& rows, int n, std::uint32_t largest_key)
      : largest_(logit_of(largest_key)),
        inverse_(1.0 / rows.temperature[n]),
        min_p_(rows.min_p != nullptr ? fminf(rows.min_p[n], 1.0F) : 0.0F) {}

  __device__ U64 operator()(std::uint32_t key) const { return rounded(ratio(key)); }
  // 0 for what min_p cuts.
  __device__ U64 kept(std::uint32_t key) const {
    const double share = ratio(key);
    return share < min_p_ ? 0 : rounded(share);
  }

 private:
  __device__ double ratio(std::uint32_t key) const {
    const double exponent = (static_cast<double>(logit_of(key)) - largest_) * inverse_;
    return exponent >= -29.0 ? exp(exponent) : 0.0;  // below 2^-41; of an infinite temperature NaN
  }
  __device__ static U64 rounded(double share) { return __double2ull_rn(share * 0x1p40); }

  double largest_;
  double inverse_;
  double min_p_;
};

// The tokens that settings keep: those of larger keys, and of this key the first `ties` by id. {0, 0}: all.
struct Cut {
  std::uint32_t key = 0;
  std::uint32_t ties = 0;
};

// A uniform number below 2^53 that depends on seed and position: core/sampling.h's draw() times 2^53.
__device__ inline U64 draw_bits(const SampleRows& rows, int n) {
  U64 seed = 0;
  if (rows.seed != nullptr) {
    const std::uint32_t* words = rows.seed + n * rows.seed_stride;
    seed = words[0] | static_cast<U64>(words[1]) << 32;
  }
  const auto position = static_cast<U64>(max(rows.lengths[n], 0));
  U64 bits = seed * 0xD1342543DE82EF95ULL + (position + 1) * 0x9E3779B97F4A7C15ULL;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBULL;
  bits ^= bits >> 31;
  return bits >> 11;
}

// Loads the keys of a segment, kSegmentLoads of a thread, all in flight; 0 beyond the row.
__device__ inline void load_keys(const SampleRows& rows, int n, int segment, std::uint32_t (&keys)[kSegmentLoads]) {
  const int end = rows.segment_end(segment);
#pragma unroll
  for (int i = 0; i < kSegmentLoads; ++i) {
    const int token = segment * kSegment + i * kRowThreads + static_cast<int>(threadIdx.x);
    keys[i] = token < end ? rows.key(n, token) : 0;
  }
}

// Writes the token of a row that has nothing to draw: absent, without probabilities, or greedy. Returns whether it is
// one. `largest()` is its largest rank, asked for only if the row is not absent. All threads call; one writes.
template <class Largest>
__device__ bool finish_undrawn(const SampleRows& rows, int n, bool writes, U64& rank, Largest largest) {
  const std::int64_t slot = rows.slot(n);
  std::int32_t token = -1;
  std::int32_t fault = slot < -1 ? kFaultStateIndices : 0;
  if (slot >= 0) {
    rank = largest();
    const bool valid = has_probabilities(rank);
    if (valid && !rows.greedy(n)) return false;
    if (valid) token = token_of_rank(rank);
    if (!valid) fault = kFaultLogits;
  }
  if (writes) {
    rows.tokens[n] = token;
    if (fault != 0 && rows.fault != nullptr) atomicOr(rows.fault, fault);
  }
  return true;
}

}  // namespace thalweg::cu
