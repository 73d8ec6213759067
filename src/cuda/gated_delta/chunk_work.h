#pragma once

// The work of each block of the chunked gated delta rule's second pass.

#include <cstdint>

#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/chunk_table.h"
#include "cuda/gated_delta/segments.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cu {

// Rows of a head's state over consecutive chunks.
struct Work {
  enum class Start { kZero, kIdentity, kPool, kCarried };

  bool valid;
  int row;     // batch row
  int begin;   // token in the row
  int length;  // tokens
  int chunks;
  int warmup;  // chunks at the beginning whose output another block writes
  int head;
  int key_head;
  int first_row;  // of the state
  Start start;
  const float* carried;             // [.,K], for kCarried
  bool no_values;                   // v is all zeros
  std::int64_t slot;                // of the state pools; -1: none
  float* carry_to;                  // [.,K], instead of the final state
  bool is_last;                     // its last state is the sequence's
  int first_chunk;                  // of the sequence
  std::int64_t checkpoints_before;  // checkpoints of the row's sequences before this one
  const std::byte* records;
};

// Skips and reports a sequence whose bounds or slot are out of range.
__device__ inline bool check_sequence(const ChunkArguments& args, int n, const SequenceMap::Sequence& sequence,
                                      std::int64_t slot, bool report) {
  const bool has_state = args.initial_state.data != nullptr || args.final_state.data != nullptr;
  const bool slot_valid = !has_state || (slot >= -1 && slot < args.state_slots);
  bool bounds_valid = sequence.valid;
  if (args.map.cu_seqlens != nullptr) {
    if (n == 0 && args.map.cu_seqlens[0] != 0) bounds_valid = false;
    if (n == args.map.sequences - 1 && args.map.cu_seqlens[n + 1] != args.map.tokens) bounds_valid = false;
  }
  if (report && args.fault != nullptr && threadIdx.x == 0) {
    const int fault = (bounds_valid ? 0 : kFaultCuSeqlens) | (slot_valid ? 0 : kFaultStateIndices);
    if (fault != 0) atomicOr(args.fault, fault);
  }
  return sequence.valid && slot_valid;
}

__device__ inline Work find_work(const ChunkArguments& args, Pass pass, int rows_per_block) {
  Work work{};
  const int walk_segments = pass == Pass::kScan ? args.walk_segments : 1;
  const int walk_chunks = walk_segments * args.segment_chunks;  // 0: whole sequences
  const int index = static_cast<int>(blockIdx.z);
  const int n = walk_chunks > 0 ? args.map.sequence_of(index, walk_chunks * kChunk) : args.map.nth_longest(index);
  const int p = walk_chunks > 0 ? index - args.map.first_index(n, walk_chunks * kChunk) : 0;
  const SequenceMap::Sequence sequence = args.map.sequence(n);
  int last = (sequence.length + kChunk - 1) / kChunk;  // chunk of the sequence
  const int walks = walk_chunks > 0 ? max(1, (last + walk_chunks - 1) / walk_chunks) : 1;
  work.slot = args.state_indices != nullptr ? args.state_indices[n] : n;
  const bool report = pass == Pass::kScan && p == 0 && blockIdx.x == 0 && blockIdx.y == 0;
  work.valid = check_sequence(args, n, sequence, work.slot, report) && p >= 0 && p < walks;
  if (!work.valid) return work;
  work.head = static_cast<int>(blockIdx.y);
  work.key_head = args.tiled ? work.head % args.hk : work.head / (args.hv / args.hk);
  work.first_row = static_cast<int>(blockIdx.x) * rows_per_block;
  work.start = args.initial_state.data != nullptr && work.slot >= 0 ? Work::Start::kPool : Work::Start::kZero;
  work.is_last = p == walks - 1;
  int first = p * walk_chunks;
  if (walk_chunks > 0) last = min(last, first + walk_chunks);
  if (pass == Pass::kCarries) {
    // M of a segment that does not decay; B of one that does not, or whose successor needs an exact start.
    const bool decays = !work.is_last && warmup_chunks(args, n, p, work.head) > 0;
    const bool needs_b = !decays || (p + 2 < walks && warmup_chunks(args, n, p + 1, work.head) == 0);
    const bool is_m = work.first_row >= args.value_width;
    work.valid = !work.is_last && (is_m ? !decays : needs_b);
    if (!work.valid) return work;
    const Carry to = carry(args, n, p, work.head);
    if (is_m) work.first_row -= args.value_width;
    work.start = is_m ? Work::Start::kIdentity : Work::Start::kZero;
    work.no_values = is_m;
    work.carry_to = is_m ? to.m : to.b;
    work.warmup = last - first;
  } else if (p > 0) {
    const int segment = p * walk_segments;
    const int warmup = warmup_chunks(args, n, segment - 1, work.head);
    first -= warmup;
    work.warmup = warmup;
    work.start = warmup > 0 ? Work::Start::kZero : Work::Start::kCarried;
    work.carried = carry(args, n, segment, work.head).start;
  }
  work.row = sequence.row;
  work.begin = sequence.begin + first * kChunk;
  work.length = min(sequence.length, last * kChunk) - first * kChunk;
  work.chunks = last - first;
  work.first_chunk = first;
  if (args.checkpoints.data != nullptr) {
    work.checkpoints_before =
        chunks_before({args.map.cu_seqlens, n, args.map.tokens, args.checkpoint_chunks * kChunk}, n);
  }
  work.records =
      args.records + (static_cast<std::int64_t>(args.map.first_index(n, kChunk) + first) * args.hv + work.head) *
                         static_cast<std::int64_t>(ChunkRecord::kPitch);
  return work;
}

}  // namespace thalweg::cu
