#pragma once

// What all kernels share: element types, sequences and chunks, function constants.

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "metal/kernels/parameters.h"

using namespace metal;

// Element types, numbered as the host's DType. A kernel is specialised for them when its pipeline is made: each test of
// a function constant is decided then, and what remains has no branches.
constant constexpr int kF32 = 0;
constant constexpr int kF16 = 1;
constant constexpr int kBF16 = 2;

// Options that are numbered as the host's.
constant constexpr int kNormL2 = 1;
constant constexpr int kNormRms = 2;

constant int kType [[function_constant(0)]];       // of q, k, v, x and their kind
constant int kOutType [[function_constant(1)]];    // of what is written
constant int kStateType [[function_constant(2)]];  // of states
constant int kHeadK [[function_constant(3)]];      // K
constant int kHeadV [[function_constant(4)]];      // V
constant int kChunk [[function_constant(5)]];      // C: 16, 32 or 64
constant int kTiled [[function_constant(6)]];      // head map: value head h reads key head h % HK
constant int kSeed [[function_constant(7)]];       // Rounding::kSeed
constant int kRagged [[function_constant(8)]];     // cu_seqlens is given
constant int kIndexed [[function_constant(9)]];    // state_indices is given
constant int kHasInitial [[function_constant(10)]];
constant int kHasFinal [[function_constant(11)]];
constant int kHasStates [[function_constant(12)]];  // h, snapshots or checkpoints
constant int kHasNew [[function_constant(13)]];     // v_new

constant int kHasFault [[function_constant(14)]];  // where DeviceFault bits go
constant int kRawGates [[function_constant(15)]];  // g and beta are made of a, b, a_log and dt_bias
constant int kGateType [[function_constant(16)]];  // of a and b
constant int kALogType [[function_constant(17)]];
constant int kBiasType [[function_constant(18)]];
constant int kNorm [[function_constant(19)]];        // QkNorm
constant int kWeightType [[function_constant(20)]];  // of the norms' weights
constant int kSnapshotType [[function_constant(21)]];
constant int kTaps [[function_constant(22)]];  // W of the convolution; 0: there is none
constant int kConvWeightType [[function_constant(23)]];
constant int kConvStateType [[function_constant(24)]];
constant int kGatedNorm [[function_constant(25)]];      // z is given
constant int kOutWeightType [[function_constant(26)]];  // of its norm's weights
constant int kFormat [[function_constant(27)]];         // of weights: an element type or a block format
constant int kPerSlot [[function_constant(28)]];        // x has a row for each slot
constant int kListsTiles [[function_constant(29)]];     // expert_rows also lists mul_mm_id's tiles

// Threads and simdgroups of every threadgroup of the matrix kernels.
constant constexpr uint kThreads = 128;
constant constexpr uint kSimdgroups = 4;

// Arrays of matrices are registers, and registers have no index: loops over them are unrolled.
#define THALWEG_UNROLL _Pragma("clang loop unroll(full)")

inline float load(device const void* data, int type, int64_t i) {
  if (type == kF16) return float(static_cast<device const half*>(data)[i]);
  if (type == kBF16) return float(static_cast<device const bfloat*>(data)[i]);
  return static_cast<device const float*>(data)[i];
}

inline void store(device void* data, int type, int64_t i, float value) {
  if (type == kF16) {
    static_cast<device half*>(data)[i] = half(value);
  } else if (type == kBF16) {
    static_cast<device bfloat*>(data)[i] = bfloat(value);
  } else {
    static_cast<device float*>(data)[i] = value;
  }
}

// bf16 where the kernels that this library began with round.
inline float seed_round(float x) { return kSeed ? float(bfloat(x)) : x; }

inline int64_t at(constant View& view, int row, int token, int head) {
  return row * view.row + token * view.token + head * view.head;
}

inline int key_head(int h, int hk, int hv) { return kTiled ? h % hk : h / (hv / hk); }

// Value head i of the HV/HK that read key head kh.
inline int value_head(int kh, int i, int hk, int hv) { return kTiled ? kh + i * hk : kh * (hv / hk) + i; }

// A piece of one sequence: `length` tokens from `begin` of batch row `row`.
struct Chunk {
  int row;
  int begin;
  int length;  // 0: there is no such chunk
  int number;  // among the chunks of its row
};

inline int chunks_of(int tokens) { return (tokens + kChunk - 1) / kChunk; }

// Bounds that no host code has seen: a sequence with wrong ones is taken to be empty.
inline int sequence_length(constant SequencesOf& sequences, device const int* bounds, int n) {
  if (!kRagged) return sequences.tokens;
  const int begin = bounds[n];
  const int end = bounds[n + 1];
  return begin >= 0 && end <= sequences.tokens && begin < end ? end - begin : 0;
}
inline bool bounds_are_wrong(constant SequencesOf& sequences, device const int* bounds, int n) {
  return kRagged && (bounds[n] < 0 || bounds[n + 1] > sequences.tokens || bounds[n] > bounds[n + 1]);
}
inline int sequence_begin(device const int* bounds, int n) { return kRagged ? bounds[n] : 0; }
inline int sequence_row(int n) { return kRagged ? 0 : n; }

// The i-th chunk of all.
inline Chunk find_chunk(constant SequencesOf& sequences, device const int* bounds, int i) {
  Chunk chunk;
  chunk.row = 0;
  chunk.begin = 0;
  chunk.length = 0;
  chunk.number = i;
  if (!kRagged) {
    const int per_row = chunks_of(sequences.tokens);
    chunk.row = i / per_row;
    chunk.number = i % per_row;
    chunk.begin = chunk.number * kChunk;
    chunk.length = min(kChunk, sequences.tokens - chunk.begin);
    return chunk;
  }
  int place = i;
  for (int n = 0; n < sequences.count; ++n) {
    const int length = sequence_length(sequences, bounds, n);
    const int here = chunks_of(length);
    if (place < here) {
      chunk.begin = bounds[n] + place * kChunk;
      chunk.length = min(kChunk, length - place * kChunk);
      return chunk;
    }
    place -= here;
  }
  return chunk;
}

inline int64_t state_place(constant StateView& view, int64_t slot, int chunk, int head, int value, int key) {
  return slot * view.slot + chunk * view.chunk + head * view.head + value * view.value + key * view.key;
}

// Where a sequence keeps its state. Not valid: the index is neither -1 nor a slot of the pool.
struct Slot {
  int index;  // -1: none
  bool valid;
};

inline Slot slot_of(device const int* indices, int n, int slots) {
  Slot slot;
  slot.index = kIndexed ? indices[n] : n;
  slot.valid = slot.index >= -1 && (slot.index < slots || !kIndexed);
  return slot;
}
