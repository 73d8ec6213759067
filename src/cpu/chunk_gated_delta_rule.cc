// Prefill in chunks of 64 tokens. Per chunk, with L the strictly lower part of (beta k) k^T o D and P the lower part of
// q k^T o D, D_ij = exp(G_i - G_j):
//   (I + L) V' = beta (v - exp(G) (k S))       one triangular solve; W, U and the inverse are never formed
//   O = scale (exp(G) (q S) + P V')
//   S = exp(G_last) S + k^T (exp(G_last - G) V')
// S is kept as [K,V], so that every product runs along contiguous rows. Short sequences run token by token.

#include <algorithm>
#include <cmath>
#include <string>

#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

constexpr std::int64_t kChunk = 64;

// A worker's memory.
struct Buffers {
  Buffers(Arena& arena, std::int64_t ks, std::int64_t vs)
      : state(arena.take<float>(ks * vs)),
        q(arena.take<float>(kChunk * ks)),
        k(arena.take<float>(kChunk * ks)),
        kt(arena.take<float>(kChunk * ks)),
        v(arena.take<float>(kChunk * vs)),
        o(arena.take<float>(kChunk * vs)),
        lower(arena.take<float>(kChunk * kChunk)),
        attention(arena.take<float>(kChunk * kChunk)),
        negated(arena.take<float>(16 * kChunk)),
        g(arena.take<float>(kChunk)),
        beta(arena.take<float>(kChunk)),
        staging(arena.take<float>(state_staging(vs, ks))) {}

  float* state;      // S [K,V]
  float* q;          // [C,K]
  float* k;          // [C,K]
  float* kt;         // [K,C]
  float* v;          // [C,V], then V'
  float* o;          // [C,V]
  float* lower;      // L [C,C]
  float* attention;  // P [C,C]
  float* negated;    // what solve_unit_lower() needs
  float* g;          // [C], cumulative
  float* beta;       // [C]
  float* staging;
};

std::int64_t floats(const ChunkGatedDeltaRuleArgs& args) {
  Arena arena;
  const Buffers counted(arena, args.k.dim(3), args.v.dim(3));
  return static_cast<std::int64_t>(arena.used() / sizeof(float));
}

std::size_t workspace(const ChunkGatedDeltaRuleArgs& args, const Stream& stream) {
  return worker_bytes(floats(args), stream);
}

// One value head of one sequence.
class HeadPrefill {
 public:
  HeadPrefill(const ChunkGatedDeltaRuleArgs& args, const Sequences& sequences, std::int64_t n, std::int64_t h)
      : args_(args),
        sequences_(sequences),
        n_(n),
        h_(h),
        kh_(key_head(args.head_map, h, args.k.dim(2), args.v.dim(2))),
        slot_(state_slot(args.state_indices, n)),
        first_checkpoint_(sequences.first_chunk(n, args.checkpoint_tokens)) {}

  void run(Arena scratch) const {
    // Decided by the sequence's own length alone, so that its bits do not depend on the rest of the batch.
    if (sequences_.length(n_) <= tuning::kTokenByTokenLength) return run_short(scratch);
    const Buffers m(scratch, ks_, vs_);
    load_state(args_.initial_state, args_.state_layout, slot_, h_, vs_, ks_, Orientation::kKV, m.state, m.staging);
    for (std::int64_t at = 0; at < sequences_.length(n_); at += kChunk) {
      const std::int64_t length = std::min(kChunk, sequences_.length(n_) - at);
      const Chunk chunk{n_, sequences_.row(n_), sequences_.begin(n_) + at, length, at / kChunk};
      store_checkpoint(at, m);
      load_chunk(chunk, m);
      form_matrices(length, m);
      solve_values(length, m);
      store_output(chunk, m);
      advance_state(length, m);
    }
    store_state(args_.final_state, args_.state_layout, slot_, h_, vs_, ks_, Orientation::kKV, m.state, m.staging);
  }

 private:
  void run_short(Arena scratch) const {
    if (sequences_.length(n_) > 0 && args_.checkpoints.defined()) {
      Arena whole = scratch;
      const Buffers m(whole, ks_, vs_);
      load_state(args_.initial_state, args_.state_layout, slot_, h_, vs_, ks_, Orientation::kKV, m.state, m.staging);
      store_checkpoint(0, m);
    }
    run_sequence(args_, {}, sequences_, n_, h_, scratch);
  }

  // The state before token `at`, if a checkpoint stands there.
  void store_checkpoint(std::int64_t at, const Buffers& m) const {
    if (!args_.checkpoints.defined() || at % args_.checkpoint_tokens != 0) return;
    const std::int64_t index = first_checkpoint_ + at / args_.checkpoint_tokens;
    store_state(state_pool(args_.checkpoints, sequences_.row(n_), index), args_.state_layout, 0, h_, vs_, ks_,
                Orientation::kKV, m.state, m.staging);
  }

  void load_chunk(const Chunk& chunk, const Buffers& m) const {
    load_head(args_.q, chunk, kh_, m.q);
    load_head(args_.k, chunk, kh_, m.k);
    for (std::int64_t i = 0; i < chunk.length; ++i) {
      normalize(args_.qk_norm, args_.qk_norm_eps, args_.q_norm_weight, kh_, ks_, m.q + i * ks_, m.staging);
      normalize(args_.qk_norm, args_.qk_norm_eps, args_.k_norm_weight, kh_, ks_, m.k + i * ks_, m.staging);
    }
    load_head(args_.v, chunk, h_, m.v);
    load_gates(args_, chunk, h_, m.g, m.beta);
    for (std::int64_t i = 1; i < chunk.length; ++i) m.g[i] += m.g[i - 1];
  }

  // L and P.
  void form_matrices(std::int64_t length, const Buffers& m) const {
    const std::int64_t width = round_up(length, 16);
    transpose_padded(m.k, length, ks_, width, m.kt);
    vec_.gemm(length, width, ks_, m.k, ks_, 1, m.kt, width, m.lower, width, false);
    for (std::int64_t i = 0; i < length; ++i) {
      vec_.scale(m.beta[i], m.lower + i * width, width, m.lower + i * width);
    }
    apply_decay(m.lower, length, width, m.g, false);
    vec_.gemm(length, width, ks_, m.q, ks_, 1, m.kt, width, m.attention, width, false);
    apply_decay(m.attention, length, width, m.g, true);
  }

  // v becomes V'; o holds k S meanwhile.
  void solve_values(std::int64_t length, const Buffers& m) const {
    vec_.gemm(length, vs_, ks_, m.k, ks_, 1, m.state, vs_, m.o, vs_, false);
    for (std::int64_t i = 0; i < length; ++i) {
      vec_.axpy(-std::exp(m.g[i]), m.o + i * vs_, vs_, m.v + i * vs_);
      vec_.scale(m.beta[i], m.v + i * vs_, vs_, m.v + i * vs_);
    }
    solve_unit_lower(m.lower, length, round_up(length, 16), m.v, vs_, m.negated);
  }

  void store_output(const Chunk& chunk, const Buffers& m) const {
    const std::int64_t length = chunk.length;
    vec_.gemm(length, vs_, ks_, m.q, ks_, 1, m.state, vs_, m.o, vs_, false);
    for (std::int64_t i = 0; i < length; ++i) vec_.scale(std::exp(m.g[i]), m.o + i * vs_, vs_, m.o + i * vs_);
    vec_.gemm(length, vs_, length, m.attention, round_up(length, 16), 1, m.v, vs_, m.o, vs_, true);
    vec_.scale(scale_, m.o, length * vs_, m.o);
    store_head(args_.o, chunk, h_, m.o);
  }

  // The state after the chunk. Scales v.
  void advance_state(std::int64_t length, const Buffers& m) const {
    const float last = m.g[length - 1];
    for (std::int64_t i = 0; i < length; ++i) {
      vec_.scale(std::exp(last - m.g[i]), m.v + i * vs_, vs_, m.v + i * vs_);
    }
    vec_.scale(std::exp(last), m.state, ks_ * vs_, m.state);
    vec_.gemm(ks_, vs_, length, m.k, 1, ks_, m.v, vs_, m.state, vs_, true);
  }

  const VectorOps& vec_ = vector_ops();
  const ChunkGatedDeltaRuleArgs& args_;
  const Sequences& sequences_;
  const std::int64_t n_;
  const std::int64_t h_;
  const std::int64_t kh_;
  const std::int64_t slot_;
  const std::int64_t first_checkpoint_;
  const std::int64_t ks_ = args_.k.dim(3);
  const std::int64_t vs_ = args_.v.dim(3);
  const float scale_ = resolve_scale(args_.scale, ks_);
};

void run(const ChunkGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream) {
  const std::int64_t hv = args.v.dim(2);
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  const std::int64_t tokens = args.k.dim(0) * args.k.dim(1) / std::max<std::int64_t>(sequences.count(), 1);
  const double task_ns = static_cast<double>((tokens + 2) * args.k.dim(3) * args.v.dim(3)) * tuning::kElementNs;
  parallel_for(stream, sequences.count() * hv, task_ns, [&](std::int64_t task, int worker) {
    HeadPrefill(args, sequences, task / hv, task % hv).run(worker_arena(memory, floats(args), worker));
  });
}

std::string remark(const ChunkGatedDeltaRuleArgs&) {
  return "sequences of at most " + std::to_string(tuning::kTokenByTokenLength) + " tokens run token by token";
}

constexpr Kernel<ChunkGatedDeltaRuleArgs> kKernels[] = {
    {"chunk64", always_supported<ChunkGatedDeltaRuleArgs>, workspace, run, remark}};

}  // namespace

KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::cpu
