#include <algorithm>

#include "core/drafts.h"
#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"
#include "cpu/nn.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

struct Sizes {
  std::int64_t batch, tokens, channels, hk, hv, k, v;

  explicit Sizes(const GatedDeltaPrepStepArgs& args)
      : batch(args.x.dim(0)),
        tokens(args.x.dim(1)),
        channels(args.x.dim(2)),
        hv(args.state_in.dim(1)),
        k(args.state_in.dim(args.state_layout == StateLayout::kVK ? 3 : 2)),
        v(args.state_in.dim(args.state_layout == StateLayout::kVK ? 2 : 3)) {
    hk = (channels - hv * v) / (2 * k);
  }
  // q, k and v of every sequence and token, convolved and normalized once per head.
  std::int64_t prepared() const { return batch * tokens * channels; }
  std::int64_t per_worker() const { return arena_floats(k * v, k, v, v, state_staging(v, k)); }
};

// The arguments of the convolution kernel, from x to f32.
CausalConv1dUpdateArgs convolution(const GatedDeltaPrepStepArgs& args, const Sizes& s, float* prepared) {
  CausalConv1dUpdateArgs conv;
  conv.x = args.x;
  conv.weight = args.conv_weight;
  conv.conv_state = args.conv_state;
  conv.state_indices = args.state_indices;
  conv.y = Tensor(prepared, DType::kF32, {s.batch, s.tokens, s.channels}, args.x.device);
  conv.activation = Activation::kSilu;
  return conv;
}

std::size_t workspace(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  const Sizes s(args);
  std::size_t bytes = worker_bytes(s.per_worker(), stream);
  if (args.conv_weight.defined()) {
    const auto& kernel = causal_conv1d_update_kernels().front();
    bytes = std::max(bytes, kernel.workspace(convolution(args, s, nullptr), stream));
  }
  return static_cast<std::size_t>(arena_floats(s.prepared())) * sizeof(float) + bytes;
}

// prepared [B,T,channels] = x, convolved if there is a weight; then normalizes q and k of each key head and scales q.
void prepare(const GatedDeltaPrepStepArgs& args, const Sizes& s, float* prepared, const Workspace& rest,
             const Stream& stream) {
  const VectorOps& vec = vector_ops();
  if (args.conv_weight.defined()) {
    causal_conv1d_update_kernels().front().run(convolution(args, s, prepared), rest, stream);
  } else {
    const double row_ns = static_cast<double>(s.channels) * tuning::kElementNs;
    parallel_for(stream, s.batch * s.tokens, row_ns, [&](std::int64_t task, int) {
      vec.load(args.x.dtype, args.x.row(task / s.tokens, task % s.tokens), s.channels, prepared + task * s.channels);
    });
  }
  const float scale = resolve_scale(args.scale, s.k);
  const double head_ns = static_cast<double>(2 * s.tokens * s.k) * tuning::kElementNs;
  parallel_for(stream, s.batch * s.hk, head_ns, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(rest, s.per_worker(), worker);
    float* weight = scratch.take<float>(s.k);
    const std::int64_t head = task % s.hk;
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      float* q = prepared + (task / s.hk * s.tokens + t) * s.channels + head * s.k;
      float* k = q + s.hk * s.k;
      normalize(args.qk_norm, args.qk_norm_eps, args.q_norm_weight, head, s.k, q, weight);
      normalize(args.qk_norm, args.qk_norm_eps, args.k_norm_weight, head, s.k, k, weight);
      vec.scale(scale, q, s.k, q);
    }
  });
}

void run(const GatedDeltaPrepStepArgs& args, Workspace memory, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const Sizes s(args);
  auto* prepared = static_cast<float*>(memory.data);
  const Workspace rest{prepared + arena_floats(s.prepared()), 0};
  prepare(args, s, prepared, rest, stream);
  const double step_ns = static_cast<double>(s.tokens * s.k * s.v) * tuning::kElementNs;
  parallel_for(stream, s.batch * s.hv, step_ns, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(rest, s.per_worker(), worker);
    float* state = scratch.take<float>(s.k * s.v);  // [V,K]
    float* o = scratch.take<float>(s.v);
    float* z = scratch.take<float>(s.v);
    float* staging = scratch.take<float>(state_staging(s.v, s.k));
    const std::int64_t b = task / s.hv;
    const std::int64_t h = task % s.hv;
    const std::int64_t kh = key_head(args.head_map, h, s.hk, s.hv);
    const std::int64_t slot = state_slot(args.state_indices, b);
    // A decoder's state is updated in in_place: it is nearly all of what this operation reads.
    float* const in_place = state_in_place(args.state_out, args.state_layout, slot, h);
    if (in_place != nullptr) state = in_place;
    if (in_place == nullptr || args.state_in.row(slot, h) != in_place) {
      load_state(args.state_in, args.state_layout, slot, h, s.v, s.k, Orientation::kVK, state, staging);
    }
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      const Chunk token{b, b, t, 1, t};
      const float* x = prepared + (b * s.tokens + t) * s.channels;
      float g = 0.0F;
      float beta = 0.0F;
      compute_gates(args.gates, token, h, &g, &beta);
      vec.delta_step(state, s.v, s.k, x + kh * s.k, x + (s.hk + kh) * s.k, x + 2 * s.hk * s.k + h * s.v, std::exp(g),
                     beta, o);
      if (args.snapshots.defined()) {
        store_state(state_pool(args.snapshots, token.row, token.begin), args.state_layout, 0, h, s.v, s.k,
                    Orientation::kVK, state, staging);
      }
      store_step_output(args, token, h, o, z, staging);
    }
    if (in_place == nullptr) {
      store_state(args.state_out, args.state_layout, slot, h, s.v, s.k, Orientation::kVK, state, staging);
    }
  });
}

std::string supports(const GatedDeltaPrepStepArgs& args, const Stream&) { return no_drafts_reason(args); }

constexpr Kernel<GatedDeltaPrepStepArgs> kKernels[] = {
    {"three_pass", supports, workspace, run},
    {"replay", always_supported<GatedDeltaPrepStepArgs>, replay_step_workspace, run_replay_step}};

}  // namespace

void store_step_output(const GatedDeltaPrepStepArgs& args, const Chunk& token, std::int64_t head, float* o, float* z,
                       float* staging) {
  const VectorOps& vec = vector_ops();
  if (args.z.defined()) {
    const std::int64_t v = args.y.dim(3);
    const float squares = vec.dot(o, o, v);
    vec.scale(1.0F / std::sqrt(squares / static_cast<float>(v) + args.norm_eps), o, v, o);
    vec.load(args.norm_weight.dtype, args.norm_weight.row(), v, staging);
    vec.multiply(o, staging, v, o);
    load_head(args.z, token, head, z);
    vec.silu_multiply(z, o, v, o);
  }
  store_head(args.y, token, head, o);
}

KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels() { return kKernels; }

}  // namespace thalweg::cpu
