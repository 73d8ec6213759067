#pragma once

// What the first pass of the chunked gated delta rule leaves for the second, per chunk of 64 tokens and value head:
//
//   T [64,64]   ((I + tril(beta_i s_i s_j k_i.k_j exp(G_i - G_j), -1))^-1 - I) diag(beta), 16-bit, swizzled tile
//   P [64,64]   tril(scale sq_i s_j q_i.k_j exp(G_i - G_j)), 16-bit, swizzled tile
//   scalars     x: s_t exp(G_t); d: s_t exp(G_last - G_t); o: scale sq_t exp(G_t); beta_t, 64 f32 each; exp(G_last)
//
// with s and sq the factors that bring k and q to norm 1, or 1. Given the state S before the chunk, with
// Y = v - x (k S^T):  V' = beta Y + T Y;  o = o (q S^T) + P V';  S = exp(G_last) S + (d V')^T k.
// The diagonal of the inverse, which is 1, is left out of T and added in f32: it is the largest part of V', which so
// escapes two roundings to 16 bits.

#include <cstdint>

#include "cuda/common/async_copy.h"
#include "cuda/common/tensor_view.h"

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

  // In T or P: the first or second eight of the 16 columns of `block` in a row, on or below the diagonal block.
  __device__ static std::uint32_t place(int row, int block, int half) { return swizzled(row, 2 * block + half); }
};

// The sequences of a batch: its rows, or the pieces of its one row that cu_seqlens marks, whose values nobody has
// checked.
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

  // Sequences are worked on in pieces of `unit` tokens: chunks, or segments of many. The number of sequence n's first
  // piece: needs no sum over the sequences before it, and pieces of two sequences still never share a number, since
  // ceil(length / unit) <= end / unit - begin / unit + 1.
  __device__ int first_piece(int n, int unit) const {
    if (cu_seqlens == nullptr) return n * ((tokens + unit - 1) / unit);
    const int begin = cu_seqlens[n];
    return (begin >= 0 && begin <= tokens ? begin : 0) / unit + n;
  }
  // How many numbers there are, on the host.
  static std::int64_t pieces(bool packed, std::int64_t sequences, std::int64_t tokens, std::int64_t unit) {
    return packed ? tokens / unit + sequences : sequences * ((tokens + unit - 1) / unit);
  }
  // The sequence that a piece belongs to, if any.
  __device__ int sequence_of(int piece, int unit) const {
    if (cu_seqlens == nullptr) return piece / ((tokens + unit - 1) / unit);
    int low = 0;
    int high = sequences - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_piece(middle, unit) <= piece) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

}  // namespace thalweg::cu
