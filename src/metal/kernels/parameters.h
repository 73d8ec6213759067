#pragma once

// The kernels' parameters, buffer(0), for host and device.

#ifndef __METAL_VERSION__
#include <cstdint>
namespace thalweg {
namespace metal {
#endif

enum {
  kMaxChunk = 64,
  kMaxHeadSize = 256,
  kBlockColumns = 32,      // columns of a matrix that are staged at a time
  kLowerFloats = 36 * 64,  // a lower triangular [64,64], by tiles of 8 x 8
  kTileFloats = 64,
  // chunk_prepare's record of a chunk and value head: two lower triangular matrices, five vectors [64].
  kRecordFloats = 2 * kLowerFloats + 5 * kMaxChunk,
  // The recurrence: tokens that are staged at a time, rows of a state that a simdgroup holds.
  kStepTokens = 8,
  kStepRows = 4,
  kRecurrentSimdgroups = 8,
  kStepSimdgroups = 16,
  kReplayTokens = 16,  // tokens that the step with replays stages at a time, where threadgroup memory holds them
};

// The expert matmuls.
enum {
  kRowsThreads = 1024,
  kCachedIds = 4096,      // ids that expert_rows keeps in threadgroup memory
  kRowsOfTile = 32,       // a tile of mul_mm_id: rows of activations
  kColumnsOfTile = 64,    //   weight rows
  kDepthOfTile = 32,      //   inputs at a time
  kColumnsOfVector = 16,  // weight rows of a threadgroup of mul_mv_id
  kColumnsOfDown = 32,    // of experts_down, whose inputs are f32
  kMostLanePairs = 4,     // of eight weights each, with common scales, that a lane of it has at a time
};

// Bits of the host's DeviceFault.
enum {
  kBadBounds = 1,
  kBadIndices = 2,
  kBadLogits = 8,
  kBadReplays = 16,
};

// Which settings of sample_tokens are given.
enum {
  kGivenSlots = 1,
  kGivenTemperature = 2,
  kGivenTopK = 4,
  kGivenTopP = 8,
  kGivenMinP = 16,
  kGivenPenalty = 32,
  kGivenLast = 64,
  kGivenSeed = 128,
  kGivenHistory = 256,
  kGivenAllowed = 512,
};

// Strides in elements of a tensor [B,T,H,..]; the innermost dimension is contiguous.
struct View {
  int64_t row;
  int64_t token;
  int64_t head;
};

// The sequences of a batch: its B rows of T tokens, or N sequences packed in one row with bounds cu_seqlens.
struct SequencesOf {
  int32_t count;
  int32_t tokens;  // T
};

struct CumsumParameters {
  SequencesOf sequences;
  int32_t hv;
  View g;
  View sums;
};

struct L2normParameters {
  int32_t tokens;
  int32_t heads;
  int64_t rows;  // B T H
  float eps;
  View x;
  View y;
};

struct KktParameters {
  SequencesOf sequences;
  int32_t hk;
  int32_t hv;
  View k;
  View beta;
  View g;
  View a;
};

struct SolveParameters {
  SequencesOf sequences;
  int32_t hv;
  View a;
  View a_inv;
};

struct WUParameters {
  SequencesOf sequences;
  int32_t hk;
  int32_t hv;
  View k;
  View v;
  View beta;
  View g;
  View a_inv;
  View w;
  View u;
};

// Strides of states [slots,HV,V,K] or [slots,HV,K,V], and of [B,NC,HV,V,K]: slot is the first dimension's there, chunk
// the second's.
struct StateView {
  int64_t slot;
  int64_t chunk;
  int64_t head;
  int64_t value;
  int64_t key;
};

struct StateParameters {
  SequencesOf sequences;
  int32_t hk;
  int32_t hv;
  int32_t slots;  // of the pools
  View k;
  View w;
  View u;
  View g;
  View v_new;
  StateView initial;
  StateView final;
  StateView h;
};

struct OutputParameters {
  SequencesOf sequences;
  int32_t hk;
  int32_t hv;
  float scale;
  View q;
  View k;
  View v_new;
  View g;
  View o;
  StateView h;
};

// g and beta, or a and b.
struct GateViews {
  View g;     // or a
  View beta;  // or b
};

struct PrepareParameters {
  SequencesOf sequences;
  int32_t hk;
  int32_t hv;
  float scale;
  float norm_eps;
  View q;
  View k;
  GateViews gates;
  int64_t q_weight_head;  // strides of the norms' weights [HK,K]
  int64_t k_weight_head;
};

struct ScanParameters {
  SequencesOf sequences;
  int32_t hk;
  int32_t hv;
  int32_t slots;
  int32_t chunks;  // capacity of the records
  View q;
  View k;
  View v;
  View o;
  int64_t q_weight_head;
  int64_t k_weight_head;
  StateView initial;
  StateView final;
  StateView checkpoints;
  int32_t checkpoint_tokens;
  int32_t max_checkpoints;  // capacity of a row's checkpoints
};

struct RecurrentParameters {
  SequencesOf sequences;
  int32_t hk;
  int32_t hv;
  int32_t slots;
  float scale;
  float norm_eps;
  View q;
  View k;
  View v;
  View o;
  GateViews gates;
  int64_t q_weight_head;
  int64_t k_weight_head;
  StateView initial;
  StateView final;
  StateView snapshots;  // [B,T,HV,V,K]
};

struct StepParameters {
  SequencesOf sequences;
  int32_t hk;
  int32_t hv;
  int32_t slots;
  int32_t replays;        // whether replay_x is given,
  int32_t most_replayed;  //   and its R
  int32_t drafts;         // whether tokens after a sequence's first are drafts
  int32_t staged_tokens;  // at a time, of the kernel with replays
  float scale;
  float norm_eps;      // of q and k
  float out_norm_eps;  // of the gated norm
  View x;              // [B,T,channels]
  int64_t conv_weight_channel;
  View conv_state;  // [slots,channels,W-1]
  View z;
  View y;
  GateViews gates;
  int64_t q_weight_head;
  int64_t k_weight_head;
  StateView state_in;
  StateView state_out;
  StateView snapshots;
  View replay_x;  // [N or slots,R,channels]
  GateViews replay_gates;
};

// A tile of mul_mm_id: consecutive rows of one expert's list.
struct RowTile {
  int32_t expert;
  int32_t first;  // index in rows
  int32_t count;  // at most kRowsOfTile
};

struct ExpertRowsParameters {
  int32_t pairs;  // T S
  int32_t slots;  // S
  int32_t experts;
  int32_t threads_per_expert;  // threads that share an expert
  int32_t column_blocks;       // of the product, for the grid
  int64_t ids_token;           // stride of the ids
};

struct ExpertMatmulParameters {
  int32_t slots;
  int32_t n;
  int32_t k;
  int32_t experts;
  int64_t weight_expert;  // bytes
  int64_t weight_row;     // bytes
  int64_t up_expert;      // of a second matrix
  int64_t up_row;
  int64_t x_token;
  int64_t x_slot;  // 0: slots share a row
  int64_t y_token;
  int64_t y_slot;
  int64_t ids_token;
};

#ifndef __METAL_VERSION__
}  // namespace metal
}  // namespace thalweg
#endif
