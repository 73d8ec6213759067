#pragma once

// Shared by all kernels: function constants, element types, sequences and chunks.

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "metal/kernels/parameters.h"

using namespace metal;

// Element types, numbered as the host's DType. Tests of function constants are resolved when the pipeline is compiled.
constant constexpr int kF32 = 0;
constant constexpr int kF16 = 1;
constant constexpr int kBF16 = 2;

// QkNorm, numbered as on the host.
constant constexpr int kNormL2 = 1;
constant constexpr int kNormRms = 2;

constant int kType [[function_constant(0)]];       // of activations: q, k, v, x
constant int kOutType [[function_constant(1)]];    // of outputs
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

constant int kHasFault [[function_constant(14)]];  // fault is given: DeviceFault bits are or-ed into it
constant int kRawGates [[function_constant(15)]];  // g and beta are computed from a, b, a_log and dt_bias
constant int kGateType [[function_constant(16)]];  // of a and b
constant int kALogType [[function_constant(17)]];
constant int kBiasType [[function_constant(18)]];
constant int kNorm [[function_constant(19)]];        // QkNorm
constant int kWeightType [[function_constant(20)]];  // of the norms' weights
constant int kSnapshotType [[function_constant(21)]];
constant int kTaps [[function_constant(22)]];  // W of the convolution, 0 without one
constant int kConvWeightType [[function_constant(23)]];
constant int kConvStateType [[function_constant(24)]];
constant int kGatedNorm [[function_constant(25)]];      // z is given
constant int kOutWeightType [[function_constant(26)]];  // of its norm's weights
constant int kFormat [[function_constant(27)]];         // of weights: an element type or a block format
constant int kPerSlot [[function_constant(28)]];        // x has a row for each slot
constant int kListsTiles [[function_constant(29)]];     // expert_rows also lists mul_mm_id's tiles

constant int kWidth [[function_constant(30)]];       // D: elements of a row
constant int kOtherType [[function_constant(31)]];   // of a second input: delta, z, gate
constant int kHasOther [[function_constant(32)]];    // it is given
constant int kHasSum [[function_constant(33)]];      // rms_norm's sum
constant int kCacheType [[function_constant(34)]];   // of keys and values in a cache
constant int kPaged [[function_constant(35)]];       // pages are given
constant int kActivation [[function_constant(36)]];  // the host's Activation
constant int kHasBias [[function_constant(37)]];
constant int kListed [[function_constant(38)]];    // rows come from expert_rows' lists; otherwise all rows in order
constant int kGated [[function_constant(39)]];     // two matrices: y = silu(gate x) * (up x)
constant int kWeighted [[function_constant(40)]];  // experts' outputs are weighted and summed
constant int kShared [[function_constant(41)]];    // there is a shared expert
constant int kSplit [[function_constant(42)]];     // of attention: a span of the context in a threadgroup
constant int kSettings [[function_constant(43)]];  // SampleSetting bits: which settings of sample_tokens are given

// Threads and simdgroups per threadgroup of the matrix kernels.
constant constexpr uint kThreads = 128;
constant constexpr uint kSimdgroups = 4;

// For loops over arrays of matrices, which must stay in registers.
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

// Rounds to bf16 under Rounding::kSeed.
inline float seed_round(float x) { return kSeed ? float(bfloat(x)) : x; }

inline int64_t at(constant View& view, int row, int token, int head) {
  return row * view.row + token * view.token + head * view.head;
}

inline int key_head(int h, int hk, int hv) { return kTiled ? h % hk : h / (hv / hk); }

// Value head i of the HV/HK that read key head kh.
inline int value_head(int kh, int i, int hk, int hv) { return kTiled ? kh + i * hk : kh * (hv / hk) + i; }

// `length` tokens of one sequence from `begin` of batch row `row`.
struct Chunk {
  int row;
  int begin;
  int length;  // 0: no such chunk
  int number;  // index among the chunks of its row
};

inline int chunks_of(int tokens) { return (tokens + kChunk - 1) / kChunk; }

// The host has not checked the bounds: a sequence with invalid ones counts as empty.
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

// Chunk i of all sequences.
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
  int index = i;
  for (int n = 0; n < sequences.count; ++n) {
    const int length = sequence_length(sequences, bounds, n);
    const int chunks_of_n = chunks_of(length);
    if (index < chunks_of_n) {
      chunk.begin = bounds[n] + index * kChunk;
      chunk.length = min(kChunk, length - index * kChunk);
      return chunk;
    }
    index -= chunks_of_n;
  }
  return chunk;
}

inline int64_t state_offset(constant StateView& view, int64_t slot, int chunk, int head, int value, int key) {
  return slot * view.slot + chunk * view.chunk + head * view.head + value * view.value + key * view.key;
}

// A sequence's slot of the state pool. Invalid if the index is neither -1 nor a slot.
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
