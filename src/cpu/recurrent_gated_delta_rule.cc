#include <algorithm>

#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

std::int64_t floats(const RecurrentGatedDeltaRuleArgs& args) { return sequence_floats(args.v.dim(3), args.k.dim(3)); }

std::size_t workspace(const RecurrentGatedDeltaRuleArgs& args, const Stream& stream) {
  return worker_bytes(floats(args), stream);
}

void run(const RecurrentGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream) {
  const std::int64_t hv = args.v.dim(2);
  const Sequences sequences(args.cu_seqlens, args.k.dim(0), args.k.dim(1));
  const std::int64_t tokens = args.k.dim(0) * args.k.dim(1) / std::max<std::int64_t>(sequences.count(), 1);
  const double task_ns = static_cast<double>((tokens + 2) * args.k.dim(3) * args.v.dim(3)) * tuning::kElementNs;
  parallel_for(stream, sequences.count() * hv, task_ns, [&](std::int64_t task, int worker) {
    run_sequence(args, args.snapshots, sequences, task / hv, task % hv, worker_arena(memory, floats(args), worker));
  });
}

constexpr Kernel<RecurrentGatedDeltaRuleArgs> kKernels[] = {
    {"sequential", always_supported<RecurrentGatedDeltaRuleArgs>, workspace, run}};

}  // namespace

void run_sequence(const GatedDeltaRuleArgs& args, const Tensor& snapshots, const Sequences& sequences, std::int64_t n,
                  std::int64_t h, Arena scratch) {
  const VectorOps& vec = vector_ops();
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v.dim(3);
  const std::int64_t kh = key_head(args.head_map, h, args.k.dim(2), args.v.dim(2));
  const std::int64_t slot = state_slot(args.state_indices, n);
  const float scale = resolve_scale(args.scale, ks);
  float* state = scratch.take<float>(ks * vs);  // [V,K]
  float* q = scratch.take<float>(ks);
  float* k = scratch.take<float>(ks);
  float* v = scratch.take<float>(vs);
  float* o = scratch.take<float>(vs);
  float* staging = scratch.take<float>(state_staging(vs, ks));
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
    if (snapshots.defined()) {
      store_state(state_pool(snapshots, token.row, token.begin), args.state_layout, 0, h, vs, ks, Orientation::kVK,
                  state, staging);
    }
  }
  store_state(args.final_state, args.state_layout, slot, h, vs, ks, Orientation::kVK, state, staging);
}

KernelList<RecurrentGatedDeltaRuleArgs> recurrent_gated_delta_rule_kernels() { return kKernels; }

}  // namespace thalweg::cpu
