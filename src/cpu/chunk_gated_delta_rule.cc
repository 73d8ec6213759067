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
#include "cpu/chunk_head.h"
#include "cpu/gated_delta_rule.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

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
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v.dim(3);
  const Buffers counted(arena, ks, vs);
  return std::max(static_cast<std::int64_t>(arena.used() / sizeof(float)), ChunkHead::short_floats(vs, ks));
}

std::size_t workspace(const ChunkGatedDeltaRuleArgs& args, const Stream& stream) {
  return worker_bytes(floats(args), stream);
}

class HeadPrefill {
 public:
  explicit HeadPrefill(const ChunkHead& head) : head_(head) {}

  void run(Arena scratch) const {
    const Buffers m(scratch, ks_, vs_);
    head_.load(Orientation::kKV, m.state, m.staging);
    head_.for_each_chunk([&](const Chunk& chunk, std::int64_t at) {
      head_.store_checkpoint(at, Orientation::kKV, m.state, m.staging);
      head_.load_inputs(chunk, m.q, m.k, m.v, m.g, m.beta, m.staging);
      form_matrices(chunk.length, m);
      solve_values(chunk.length, m);
      store_output(chunk, m);
      advance_state(chunk.length, m);
    });
    head_.store(Orientation::kKV, m.state, m.staging);
  }

 private:
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
    vec_.scale(head_.scale, m.o, length * vs_, m.o);
    store_head(head_.args.o, chunk, head_.h, m.o);
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
  const ChunkHead& head_;
  const std::int64_t ks_ = head_.ks;
  const std::int64_t vs_ = head_.vs;
};

void run(const ChunkGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream) {
  for_each_head(args, memory, floats(args), stream,
                [](const ChunkHead& head, const Arena& scratch) { HeadPrefill(head).run(scratch); });
}

// bf16, where it can: whatever the number of tokens, so that a sequence's bits do not depend on the rest.
double cost(const ChunkGatedDeltaRuleArgs&, const Stream&) { return 1.0; }
double bf16_cost(const ChunkGatedDeltaRuleArgs&, const Stream&) { return 0.0; }

std::string remark(const ChunkGatedDeltaRuleArgs&) {
  return "sequences of at most " + std::to_string(tuning::kTokenByTokenLength) + " tokens run token by token";
}

constexpr Kernel<ChunkGatedDeltaRuleArgs> kKernels[] = {
    {"chunk64", always_supported<ChunkGatedDeltaRuleArgs>, workspace, run, remark, Arithmetic::kF32, cost},
    {"bf16", bf16_rule_reason, bf16_rule_workspace, run_bf16_rule, remark, Arithmetic::k16Bit, bf16_cost}};

}  // namespace

KernelList<ChunkGatedDeltaRuleArgs> chunk_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::cpu
