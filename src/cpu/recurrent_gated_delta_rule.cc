#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"

namespace thalweg::cpu {
namespace {

std::int64_t floats(const RecurrentGatedDeltaRuleArgs& args) {
  const std::int64_t k = args.k.dim(3);
  const std::int64_t v = args.v.dim(3);
  return Scratch::floats(k * v, k, k, v, v, state_staging(v, k));
}

std::size_t workspace(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
  return Scratch::workspace_bytes(floats(args), stream);
}

void run(const RecurrentGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v.dim(3);
  const std::int64_t hk = args.k.dim(2);
  const std::int64_t hv = args.v.dim(2);
  const float scale = resolve_scale(args.scale, ks);
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  parallel_for(stream, sequences.count() * hv, [&](std::int64_t task, int worker) {
    Scratch scratch(memory, floats(args), worker);
    float* state = scratch.take(ks * vs);  // [V,K]
    float* q = scratch.take(ks);
    float* k = scratch.take(ks);
    float* v = scratch.take(vs);
    float* o = scratch.take(vs);
    float* staging = scratch.take(state_staging(vs, ks));
    const std::int64_t n = task / hv;
    const std::int64_t h = task % hv;
    const std::int64_t kh = key_head(args.head_map, h, hk, hv);
    const std::int64_t slot = state_slot(args.state_indices, n);
    load_state(args.initial_state, args.state_layout, slot, h, vs, ks, Orientation::kVK, state, staging);
    for (std::int64_t t = 0; t < sequences.length(n); ++t) {
      const Chunk token{n, sequences.row(n), sequences.begin(n) + t, 1, t};
      load_head(args.q, token, kh, q);
      load_head(args.k, token, kh, k);
      load_head(args.v, token, h, v);
      normalize(args.qk_norm, args.qk_norm_eps, args.q_norm_weight, kh, ks, q, staging);
      normalize(args.qk_norm, args.qk_norm_eps, args.k_norm_weight, kh, ks, k, staging);
      vec.scale(scale, q, ks, q);
      float g = 0.0F;
      float beta = 0.0F;
      load_gates(args, token, h, &g, &beta);
      vec.delta_step(state, vs, ks, q, k, v, std::exp(g), beta, o);
      store_head(args.o, token, h, o);
      if (args.snapshots.defined()) {
        store_state(state_pool(args.snapshots, token.row, token.begin), args.state_layout, 0, h, vs, ks,
                    Orientation::kVK, state, staging);
      }
    }
    store_state(args.final_state, args.state_layout, slot, h, vs, ks, Orientation::kVK, state, staging);
  });
}

constexpr Kernel<RecurrentGatedDeltaRuleArgs> kKernels[] = {
    {"sequential", always_supported<RecurrentGatedDeltaRuleArgs>, workspace, run}};

}  // namespace

KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::cpu
