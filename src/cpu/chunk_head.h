#pragma once

// What the prefill kernels of the gated delta rule share: one value head of one sequence, chunk by chunk.

#include "cpu/flush_subnormals.h"
#include "cpu/gated_delta.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {

inline constexpr std::int64_t kChunk = 64;

struct ChunkHead {
  ChunkHead(const ChunkGatedDeltaRuleArgs& args_, const Sequences& sequences_, std::int64_t n_, std::int64_t h_)
      : args(args_),
        sequences(sequences_),
        n(n_),
        h(h_),
        kh(key_head(args.head_map, h, args.k.dim(2), args.v.dim(2))),
        slot(state_slot(args.state_indices, n)),
        first_checkpoint(sequences.first_chunk(n, args.checkpoint_tokens)) {}

  // Decided by the sequence's own length alone, so that its bits do not depend on the rest of the batch.
  bool is_short() const { return sequences.length(n) <= tuning::kTokenByTokenLength; }
  static constexpr std::int64_t short_floats(std::int64_t v, std::int64_t k) {
    return std::max(sequence_floats(v, k), arena_floats(k * v, state_staging(v, k)));
  }
  void run_short(Arena scratch) const {
    if (sequences.length(n) > 0 && args.checkpoints.defined()) {
      Arena whole = scratch;
      auto* const state = whole.take<float>(ks * vs);
      auto* const staging = whole.take<float>(state_staging(vs, ks));
      load(Orientation::kVK, state, staging);
      store_checkpoint(0, Orientation::kVK, state, staging);
    }
    run_sequence(args, {}, sequences, n, h, scratch);
  }

  // Calls body(chunk, tokens of the sequence before it).
  template <class Body>
  void for_each_chunk(Body&& body) const {
    for (std::int64_t at = 0; at < sequences.length(n); at += kChunk) {
      const std::int64_t length = std::min(kChunk, sequences.length(n) - at);
      body(Chunk{n, sequences.row(n), sequences.begin(n) + at, length, at / kChunk}, at);
    }
  }

  void load(Orientation orientation, float* state, float* staging) const {
    load_state(args.initial_state, args.state_layout, slot, h, vs, ks, orientation, state, staging);
  }
  void store(Orientation orientation, const float* state, float* staging) const {
    store_state(args.final_state, args.state_layout, slot, h, vs, ks, orientation, state, staging);
  }
  // The state before token `at`, if a checkpoint stands there.
  void store_checkpoint(std::int64_t at, Orientation orientation, const float* state, float* staging) const {
    if (!args.checkpoints.defined() || at % args.checkpoint_tokens != 0) return;
    const std::int64_t index = first_checkpoint + at / args.checkpoint_tokens;
    store_state(state_pool(args.checkpoints, sequences.row(n), index), args.state_layout, 0, h, vs, ks, orientation,
                state, staging);
  }

  // q, k [C,K], normalized, v [C,V], the sums of g and beta [C].
  void load_inputs(const Chunk& chunk, float* q, float* k, float* v, float* g, float* beta, float* staging) const {
    load_head(args.q, chunk, kh, q);
    load_head(args.k, chunk, kh, k);
    for (std::int64_t i = 0; i < chunk.length; ++i) {
      normalize(args.qk_norm, args.qk_norm_eps, args.q_norm_weight, kh, ks, q + i * ks, staging);
      normalize(args.qk_norm, args.qk_norm_eps, args.k_norm_weight, kh, ks, k + i * ks, staging);
    }
    load_head(args.v, chunk, h, v);
    load_gates(args, chunk, h, g, beta);
    for (std::int64_t i = 1; i < chunk.length; ++i) g[i] += g[i - 1];
  }

  const ChunkGatedDeltaRuleArgs& args;
  const Sequences& sequences;
  const std::int64_t n;
  const std::int64_t h;
  const std::int64_t kh;
  const std::int64_t slot;
  const std::int64_t first_checkpoint;
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v.dim(3);
  const float scale = resolve_scale(args.scale, ks);
};

// Runs body(head, scratch) for each value head of each sequence, with `floats` of scratch.
template <class Body>
void for_each_head(const ChunkGatedDeltaRuleArgs& args, Workspace memory, std::int64_t floats, const Stream& stream,
                   Body&& body) {
  const std::int64_t hv = args.v.dim(2);
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  const std::int64_t tokens = args.k.dim(0) * args.k.dim(1) / std::max<std::int64_t>(sequences.count(), 1);
  const double task_ns = static_cast<double>((tokens + 2) * args.k.dim(3) * args.v.dim(3)) * tuning::kElementNs;
  parallel_for(stream, sequences.count() * hv, task_ns, [&](std::int64_t task, int worker) {
    const FlushSubnormals flush;
    const ChunkHead head(args, sequences, task / hv, task % hv);
    const Arena scratch = worker_arena(memory, floats, worker);
    if (head.is_short()) {
      head.run_short(scratch);
    } else {
      body(head, scratch);
    }
  });
}

// chunk_gated_delta_bf16.cc
std::string bf16_rule_reason(const ChunkGatedDeltaRuleArgs& args, const Stream& stream);
std::size_t bf16_rule_workspace(const ChunkGatedDeltaRuleArgs& args, const Stream& stream);
void run_bf16_rule(const ChunkGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream);

}  // namespace thalweg::cpu
