#pragma once

// Parameters of the layers' kernels: norms, moves, attention, sampling. Strides are in elements.

#include "metal/kernels/parameters.h"

#ifndef __METAL_VERSION__
namespace thalweg {
namespace metal {
#endif

enum {
  kRowElements = 8,  // of a row that a thread keeps in registers
  kMaxRowThreads = 1024,
  kMovedElements = 4,  // of a thread that only moves them
  kMoveThreads = 128,
  kMaxRotaryPairs = 512,  // whose frequencies fit beside the other parameters
  kRopeSimdgroups = 8,
  kConvTokens = 8,      // of a thread of causal_conv1d
  kAttentionRows = 32,  // of a tile: pairs of a token and a query head
  kAttentionKeys = 16,  // positions that a tile takes at a time
  kSplitHeads = 4,      // query heads that share the keys that a split reads
  kSplitSimdgroups = 4,
  kVectorTokens = 4,      // of a threadgroup of linear_rows
  kSampleThreads = 1024,  // of a threadgroup that has a row of logits
  kSegmentThreads = 256,
  kSegment = 2048,           // logits of a segment
  kSampleBins = 256,         // of a histogram: eight bits of a key
  kMaxRoutedExperts = 8192,  // whose logits fit in threadgroup memory
};

// View: token and head are the strides of [T,H,D] or [T,D].
struct NormParameters {
  float eps;
  float weight_offset;  // 1 for zero-centered weights
  int32_t tokens;       // of a sequence
  int32_t slots;
  View x;
  View other;  // delta, or z
  View sum;
  View y;
};

struct PairwiseParameters {
  int64_t a_token;
  int64_t b_token;
  int64_t y_token;
};

struct RopeParameters {
  int32_t heads;
  int32_t half_pairs;  // rotary_dim / 2
  float scale;
  float eps;
  float weight_offset;
  View x;
  View y;
  float frequency[kMaxRotaryPairs];
};

struct UnpackParameters {
  int32_t rows;  // of the table
  int64_t row_bytes;
  int64_t table_bytes;
  int64_t y_row;
  int64_t y_table;
};

struct ConvParameters {
  SequencesOf sequences;
  int32_t channels;
  int32_t slots;
  View x;  // row, token
  View y;
  View initial;  // row: slot, token: channel
  View final;
  int64_t weight_channel;
};

struct SplitParameters {
  int32_t key;     // K
  int32_t values;  // R V
  View x;
  View q;
  View k;
  View v;
  View z;
};

// Where a cache [slots,S,HKV,D] or [pages,S,HKV,D] holds the positions of sequences.
struct CacheParameters {
  int32_t sequences;     // N
  int32_t tokens;        // T
  int32_t places;        // slots or pages
  int32_t rows;          // S
  int32_t page_columns;  // P
  int64_t pages_row;     // stride of pages [N,P]
  View keys;             // row: slot or page, token: position, head
  View values;
};

struct StoreParameters {
  CacheParameters cache;
  int32_t heads;
  View k;
  View v;
};

struct RouteParameters {
  int32_t experts;
  int32_t slots;
  int32_t renormalize;
  int32_t sigmoid;  // else softmax
  int32_t biased;
  int64_t logits_token;
  int64_t ids_token;
  int64_t weights_token;
};

struct AdvanceParameters {
  int32_t count;          // N
  int32_t ends;           // E
  int32_t history_slots;  // 0 without a history
  int32_t history_size;
  int64_t history_slot;
};

struct SampleParameters {
  int32_t vocabulary;
  int32_t segments;  // of a row
  int32_t history_slots;
  int32_t history_size;
  int64_t logits_row;
  int64_t history_slot;
  int64_t seed_row;
  int64_t allowed_row;
};

struct LogprobParameters {
  int32_t vocabulary;
  int32_t count;  // K
  int64_t logits_row;
  int64_t top_tokens_row;
  int64_t top_logprobs_row;
};

// y [T,N] = x [T,K] times weight [N,K], or silu(gate x) * (up x).
struct LinearParameters {
  int32_t tokens;
  int32_t n;
  int32_t k;
  int64_t weight_row;  // bytes
  int64_t up_row;      // of a second matrix
  int64_t x_token;
  int64_t y_token;
};

// The sum of the experts' outputs: y [T,D].
struct CombineParameters {
  int32_t tokens;
  int32_t slots;
  int64_t y_token;
};

struct CopyParameters {
  int64_t words;  // of the target, at multiples of four bytes; the first and the last may be shared with others
  int64_t bytes;
  int64_t shift;  // bytes of the first word before the target
};

struct AttentionParameters {
  CacheParameters cache;
  int32_t heads;        // HQ
  int32_t key_heads;    // HKV
  int32_t rows_heads;   // of a tile, or of a split: query heads of one key head
  int32_t groups;       // that share a key head
  int32_t rows_tokens;  // of a tile
  int32_t span;         // positions of a split
  int32_t splits;
  float scale;
  View q;
  View gate;
  View o;
};

#ifndef __METAL_VERSION__
}  // namespace metal
}  // namespace thalweg
#endif
