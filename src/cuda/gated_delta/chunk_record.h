#pragma once

// The record of a chunk of 64 tokens and a value head, which the second pass of the chunked gated delta rule reads:
//
//   T [64,64]   ((I + tril(beta_i s_i s_j k_i.k_j exp(G_i - G_j), -1))^-1 - I) diag(beta), 16-bit, swizzled tile
//   P [64,64]   tril(scale sq_i s_j q_i.k_j exp(G_i - G_j)), 16-bit, swizzled tile
//   scalars     x: s_t exp(G_t); d: s_t exp(G_last - G_t); o: scale sq_t exp(G_t); beta_t, 64 f32 each; exp(G_last)
//
// with s and sq the norm factors of k and q. Given the state S before the chunk, with
// Y = v - x (k S^T):  V' = beta Y + T Y;  o = o (q S^T) + P V';  S = exp(G_last) S + (d V')^T k.
// T does not contain the diagonal of the inverse, which is 1 and is added in f32: the largest term of V' is so not
// rounded to 16 bits.

#include <cstdint>

#include "cuda/common/async_copy.h"
#include "cuda/common/tensor_view.h"
#include "cuda/common/warp.h"

namespace thalweg::cu {

constexpr int kChunk = 64;

struct ChunkRecord {
  static constexpr int kT = 0;
  static constexpr int kP = 8192;
  static constexpr int kX = 16384;
  static constexpr int kD = kX + 256;
  static constexpr int kO = kD + 256;
  static constexpr int kBeta = kO + 256;
  static constexpr int kDecay = kBeta + 256;
  static constexpr int kBytes = kDecay + 16;
  static constexpr int kPitch = (kBytes + 127) / 128 * 128;  // from one record to the next

  // The offset in T or P of the first or second eight of the 16 columns of `block` in a row.
  __device__ static std::uint32_t offset(int row, int block, int half) { return swizzled(row, 2 * block + half); }
};

// The sequences of a batch: its rows, or the spans of its one row that cu_seqlens marks. Host code has not checked the
// values of cu_seqlens.
struct SequenceMap {
  const std::int32_t* cu_seqlens;  // null: rows
  int sequences;
  int tokens;  // of a row

  struct Sequence {
    int row;
    int begin;
    int length;
    bool valid;
  };
  __device__ Sequence sequence(int n) const {
    if (cu_seqlens == nullptr) return {n, 0, tokens, true};
    const int begin = cu_seqlens[n];
    const int end = cu_seqlens[n + 1];
    const bool valid = begin >= 0 && begin <= end && end <= tokens;
    return {0, valid ? begin : 0, valid ? end - begin : 0, valid};
  }

  // The sequence of the n-th greatest length, so that blocks in this order leave no multiprocessor idle for long; the
  // n-th one of more than a warp has lanes. By a whole warp.
  __device__ int nth_longest(int n) const {
    if (cu_seqlens == nullptr || sequences == 1 || sequences > kWarpSize) return n;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int length = lane < sequences ? sequence(lane).length : 0;
    int before = 0;
#pragma unroll 1
    for (int other = 0; other < sequences; ++other) {
      const int its_length = __shfl_sync(0xFFFFFFFFU, length, other);
      if (its_length > length || (its_length == length && other < lane)) ++before;
    }
    return __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, lane < sequences && before == n))) - 1;
  }

  // Sequences are split into spans of `length` tokens: chunks, or segments of several chunks. The index of sequence n's
  // first span needs no sum over the sequences before it, and spans of two sequences still never share an index, since
  // ceil(tokens / length) <= end / length - begin / length + 1.
  __device__ int first_index(int n, int length) const {
    if (cu_seqlens == nullptr) return n * ((tokens + length - 1) / length);
    const int begin = cu_seqlens[n];
    return (begin >= 0 && begin <= tokens ? begin : 0) / length + n;
  }
  // The number of indices, on the host.
  static std::int64_t count(bool packed, std::int64_t sequences, std::int64_t tokens, std::int64_t length) {
    return packed ? tokens / length + sequences : sequences * ((tokens + length - 1) / length);
  }
  // The sequence of a span, if the span exists.
  __device__ int sequence_of(int index, int length) const {
    if (cu_seqlens == nullptr) return index / ((tokens + length - 1) / length);
    int low = 0;
    int high = sequences - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_index(middle, length) <= index) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

}  // namespace thalweg::cu
