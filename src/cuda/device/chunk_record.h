#pragma once

// What the first pass of the chunked gated delta rule leaves for the second, per chunk of 64 tokens and value head:
//
//   T [64,64]   (I + tril(beta_i s_i s_j k_i.k_j exp(G_i - G_j), -1))^-1 diag(beta), 16-bit, swizzled tile
//   P [64,64]   tril(scale sq_i s_j q_i.k_j exp(G_i - G_j)), 16-bit, swizzled tile
//   scalars     x: s_t exp(G_t); d: s_t exp(G_last - G_t); o: scale sq_t exp(G_t), 64 f32 each; exp(G_last)
//
// with s and sq the factors that bring k and q to norm 1, or 1. Given the state S before the chunk, with
// Y = v - x (k S^T):  V' = T Y;  o = o (q S^T) + P V';  S = exp(G_last) S + (d V')^T k.

#include <cstdint>

#include "cuda/device/tensor_view.h"

namespace thalweg::cu {

constexpr int kChunk = 64;

struct ChunkRecord {
  static constexpr int kT = 0;
  static constexpr int kP = 8192;
  static constexpr int kX = 16384;
  static constexpr int kD = kX + 256;
  static constexpr int kO = kD + 256;
  static constexpr int kDecay = kO + 256;
  static constexpr int kBytes = 17408;  // keeps every record aligned to 1024 bytes
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

  // Where the records of sequence n begin: numbers that need no sum over the sequences before it and still never
  // overlap, since ceil(length / 64) <= end / 64 - begin / 64 + 1.
  __device__ int first_slot(int n) const {
    if (cu_seqlens == nullptr) return n * ((tokens + kChunk - 1) / kChunk);
    const int begin = cu_seqlens[n];
    return (begin >= 0 && begin <= tokens ? begin : 0) / kChunk + n;
  }
  // How many slots there are, on the host.
  static std::int64_t slots(bool packed, std::int64_t sequences, std::int64_t tokens) {
    return packed ? tokens / kChunk + sequences : sequences * ((tokens + kChunk - 1) / kChunk);
  }

  // The sequence that a slot belongs to, if any.
  __device__ int sequence_of(int slot) const {
    if (cu_seqlens == nullptr) return slot / ((tokens + kChunk - 1) / kChunk);
    int low = 0;
    int high = sequences - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_slot(middle) <= slot) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

}  // namespace thalweg::cu
