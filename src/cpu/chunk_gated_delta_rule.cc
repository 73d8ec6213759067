// Prefill in chunks of 64 tokens. Per chunk, with L the strictly lower part of (beta k) k^T o D and P the lower part of
// q k^T o D, D_ij = exp(G_i - G_j):
//   (I + L) V' = beta (v - exp(G) (k S))       one triangular solve; W, U and the inverse are never formed
//   O = scale (exp(G) (q S) + P V')
//   S = exp(G_last) S + k^T (exp(G_last - G) V')
// Short sequences go token by token.
// S is kept as [K,V], so that every product runs along contiguous rows.

#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

constexpr std::int64_t kChunk = 64;
// Up to here the recurrence is faster: nothing to transpose, no triangle. Measured at K = V = 128.
constexpr std::int64_t kShort = 24;

std::int64_t floats(const ChunkGatedDeltaRuleArgs& args) {
  const std::int64_t k = args.k.dim(3);
  const std::int64_t v = args.v.dim(3);
  return arena_floats(k * v, kChunk * k, kChunk * k, kChunk * k, kChunk * v, kChunk * v, kChunk * kChunk,
                      kChunk * kChunk, 16 * kChunk, kChunk, kChunk, state_staging(v, k));
}

std::size_t workspace(const ChunkGatedDeltaRuleArgs& args, const Stream& stream) {
  return worker_bytes(floats(args), stream);
}

void run(const ChunkGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v.dim(3);
  const std::int64_t hk = args.k.dim(2);
  const std::int64_t hv = args.v.dim(2);
  const float scale = resolve_scale(args.scale, ks);
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  const std::int64_t tokens = args.k.dim(0) * args.k.dim(1) / std::max<std::int64_t>(sequences.count(), 1);
  const double task_ns = static_cast<double>((tokens + 2) * ks * vs) * tuning::kElementNs;
  parallel_for(stream, sequences.count() * hv, task_ns, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(memory, floats(args), worker);
    const std::int64_t n = task / hv;
    const std::int64_t h = task % hv;
    const std::int64_t slot = state_slot(args.state_indices, n);
    const std::int64_t pieces_before = sequences.first_chunk(n, args.checkpoint_tokens);
    const auto checkpoint = [&](std::int64_t at, const float* state, float* staging) {
      if (!args.checkpoints.defined() || at % args.checkpoint_tokens != 0) return;
      const std::int64_t piece = pieces_before + at / args.checkpoint_tokens;
      store_state(state_pool(args.checkpoints, sequences.row(n), piece), args.state_layout, 0, h, vs, ks,
                  Orientation::kKV, state, staging);
    };
    // By its own length alone, so that a sequence's bits do not depend on its neighbours.
    if (sequences.length(n) <= kShort) {
      if (sequences.length(n) > 0 && args.checkpoints.defined()) {
        Arena whole = scratch;
        float* state = whole.take<float>(ks * vs);
        float* staging = whole.take<float>(state_staging(vs, ks));
        load_state(args.initial_state, args.state_layout, slot, h, vs, ks, Orientation::kKV, state, staging);
        checkpoint(0, state, staging);
      }
      run_sequence(args, {}, sequences, n, h, scratch);
      return;
    }
    float* state = scratch.take<float>(ks * vs);  // [K,V]
    float* q = scratch.take<float>(kChunk * ks);
    float* k = scratch.take<float>(kChunk * ks);
    float* kt = scratch.take<float>(kChunk * ks);  // [K,C]
    float* v = scratch.take<float>(kChunk * vs);
    float* o = scratch.take<float>(kChunk * vs);
    float* lower = scratch.take<float>(kChunk * kChunk);
    float* attention = scratch.take<float>(kChunk * kChunk);
    float* negated = scratch.take<float>(16 * kChunk);
    float* g = scratch.take<float>(kChunk);
    float* beta = scratch.take<float>(kChunk);
    float* staging = scratch.take<float>(state_staging(vs, ks));
    const std::int64_t kh = key_head(args.head_map, h, hk, hv);
    load_state(args.initial_state, args.state_layout, slot, h, vs, ks, Orientation::kKV, state, staging);
    for (std::int64_t at = 0; at < sequences.length(n); at += kChunk) {
      const std::int64_t length = std::min(kChunk, sequences.length(n) - at);
      const std::int64_t width = round_up(length, 16);
      checkpoint(at, state, staging);
      const Chunk chunk{n, sequences.row(n), sequences.begin(n) + at, length, at / kChunk};
      load_head(args.q, chunk, kh, q);
      load_head(args.k, chunk, kh, k);
      for (std::int64_t i = 0; i < length; ++i) {
        normalize(args.qk_norm, args.qk_norm_eps, args.q_norm_weight, kh, ks, q + i * ks, staging);
        normalize(args.qk_norm, args.qk_norm_eps, args.k_norm_weight, kh, ks, k + i * ks, staging);
      }
      load_head(args.v, chunk, h, v);
      load_gates(args, chunk, h, g, beta);
      for (std::int64_t i = 1; i < length; ++i) g[i] += g[i - 1];

      transpose_padded(k, length, ks, width, kt);
      vec.gemm(length, width, ks, k, ks, 1, kt, width, lower, width, false);
      for (std::int64_t i = 0; i < length; ++i) vec.scale(beta[i], lower + i * width, width, lower + i * width);
      apply_decay(lower, length, width, g, false);
      vec.gemm(length, width, ks, q, ks, 1, kt, width, attention, width, false);
      apply_decay(attention, length, width, g, true);

      // v becomes V'; o holds k S on the way.
      vec.gemm(length, vs, ks, k, ks, 1, state, vs, o, vs, false);
      for (std::int64_t i = 0; i < length; ++i) {
        vec.axpy(-std::exp(g[i]), o + i * vs, vs, v + i * vs);
        vec.scale(beta[i], v + i * vs, vs, v + i * vs);
      }
      solve_unit_lower(lower, length, width, v, vs, negated);

      vec.gemm(length, vs, ks, q, ks, 1, state, vs, o, vs, false);
      for (std::int64_t i = 0; i < length; ++i) vec.scale(std::exp(g[i]), o + i * vs, vs, o + i * vs);
      vec.gemm(length, vs, length, attention, width, 1, v, vs, o, vs, true);
      vec.scale(scale, o, length * vs, o);
      store_head(args.o, chunk, h, o);

      const float last = g[length - 1];
      for (std::int64_t i = 0; i < length; ++i) vec.scale(std::exp(last - g[i]), v + i * vs, vs, v + i * vs);
      vec.scale(std::exp(last), state, ks * vs, state);
      vec.gemm(ks, vs, length, k, 1, ks, v, vs, state, vs, true);
    }
    store_state(args.final_state, args.state_layout, slot, h, vs, ks, Orientation::kKV, state, staging);
  });
}

constexpr Kernel<ChunkGatedDeltaRuleArgs> kKernels[] = {
    {"chunk64", always_supported<ChunkGatedDeltaRuleArgs>, workspace, run}};

}  // namespace

KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::cpu
