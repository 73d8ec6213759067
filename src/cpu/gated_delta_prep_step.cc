#include <algorithm>

#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"

namespace thalweg::cpu {
namespace {

struct Sizes {
  std::int64_t batch, tokens, channels, hk, hv, k, v, taps;

  explicit Sizes(const GatedDeltaPrepStepArgs& args)
      : batch(args.x.dim(0)),
        tokens(args.x.dim(1)),
        channels(args.x.dim(2)),
        hv(args.state_in.dim(1)),
        k(args.state_in.dim(args.state_layout == StateLayout::kVK ? 3 : 2)),
        v(args.state_in.dim(args.state_layout == StateLayout::kVK ? 2 : 3)),
        taps(args.conv_weight.defined() ? args.conv_weight.dim(1) : 1) {
    hk = (channels - hv * v) / (2 * k);
  }
  // q, k and v of every sequence and token, convolved and normed: computed once per head, not once per value row.
  std::int64_t prepared() const { return batch * tokens * channels; }
  std::int64_t per_worker() const { return Scratch::floats(k * v, k, v, v, state_staging(v, k)); }
};

std::size_t workspace(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  const Sizes s(args);
  return static_cast<std::size_t>(Scratch::floats(s.prepared())) * sizeof(float) +
         Scratch::workspace_bytes(s.per_worker(), stream);
}

// Convolution and SiLU of `count` channels from `first` on, for every token of sequence b. The state moves on.
void convolve(const GatedDeltaPrepStepArgs& args, const Sizes& s, std::int64_t b, std::int64_t slot, std::int64_t first,
              std::int64_t count, float* prepared) {
  const VectorOps& vec = vector_ops();
  constexpr std::int64_t kMaxTaps = 8;
  float window[kMaxTaps];  // oldest first, the newest input last
  float weight[kMaxTaps];
  for (std::int64_t c = first; c < first + count; ++c) {
    vec.load(args.conv_weight.dtype, args.conv_weight.row(c), s.taps, weight);
    std::fill_n(window, s.taps, 0.0F);
    if (slot >= 0) vec.load(args.conv_state.dtype, args.conv_state.row(slot, c), s.taps - 1, window + 1);
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      std::copy(window + 1, window + s.taps, window);
      const char* x = static_cast<const char*>(args.x.row(b, t)) + bytes_of(args.x.dtype, c);
      vec.load(args.x.dtype, x, 1, window + s.taps - 1);
      float sum = 0.0F;
      for (std::int64_t j = 0; j < s.taps; ++j) sum += weight[j] * window[j];
      prepared[t * s.channels + c] = sum;
    }
    if (slot >= 0) vec.store(args.conv_state.dtype, window + 1, s.taps - 1, args.conv_state.row(slot, c));
  }
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    float* row = prepared + t * s.channels + first;
    vec.silu_multiply(row, nullptr, count, row);
  }
}

// Fills `prepared` [T,channels] of sequence b for one piece: a key head's q and k, or a value head's v.
void prepare(const GatedDeltaPrepStepArgs& args, const Sizes& s, std::int64_t b, std::int64_t piece, float* prepared,
             float* scratch) {
  const VectorOps& vec = vector_ops();
  const std::int64_t slot = state_slot(args.state_indices, b);
  const auto fill = [&](std::int64_t first, std::int64_t count) {
    if (args.conv_weight.defined()) {
      convolve(args, s, b, slot, first, count, prepared);
      return;
    }
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      const char* x = static_cast<const char*>(args.x.row(b, t)) + bytes_of(args.x.dtype, first);
      vec.load(args.x.dtype, x, count, prepared + t * s.channels + first);
    }
  };
  if (piece >= s.hk) {
    fill(2 * s.hk * s.k + (piece - s.hk) * s.v, s.v);
    return;
  }
  const std::int64_t q_at = piece * s.k;
  const std::int64_t k_at = s.hk * s.k + piece * s.k;
  fill(q_at, s.k);
  fill(k_at, s.k);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    float* q = prepared + t * s.channels + q_at;
    normalize(args.qk_norm, args.qk_norm_eps, args.q_norm_weight, piece, s.k, q, scratch);
    vec.scale(args.scale, q, s.k, q);
    normalize(args.qk_norm, args.qk_norm_eps, args.k_norm_weight, piece, s.k, prepared + t * s.channels + k_at,
              scratch);
  }
}

void run(const GatedDeltaPrepStepArgs& args, Workspace memory, const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const Sizes s(args);
  auto* prepared = static_cast<float*>(memory.data);
  const Workspace rest{prepared + Scratch::floats(s.prepared()), 0};
  const std::int64_t pieces = s.hk + s.hv;
  parallel_for(stream, s.batch * pieces, [&](std::int64_t task, int worker) {
    Scratch scratch(rest, s.per_worker(), worker);
    const std::int64_t b = task / pieces;
    prepare(args, s, b, task % pieces, prepared + b * s.tokens * s.channels, scratch.take(s.k));
  });
  parallel_for(stream, s.batch * s.hv, [&](std::int64_t task, int worker) {
    Scratch scratch(rest, s.per_worker(), worker);
    float* state = scratch.take(s.k * s.v);  // [V,K]
    float* o = scratch.take(s.v);
    float* z = scratch.take(s.v);
    float* staging = scratch.take(state_staging(s.v, s.k));
    const std::int64_t b = task / s.hv;
    const std::int64_t h = task % s.hv;
    const std::int64_t kh = key_head(args.head_map, h, s.hk, s.hv);
    const std::int64_t slot = state_slot(args.state_indices, b);
    load_state(args.state_in, args.state_layout, slot, h, s.v, s.k, Orientation::kVK, state, staging);
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
      if (args.z.defined()) {
        const float squares = vec.dot(o, o, s.v);
        vec.scale(1.0F / std::sqrt(squares / static_cast<float>(s.v) + args.norm_eps), o, s.v, o);
        vec.load(args.norm_weight.dtype, args.norm_weight.row(), s.v, staging);
        vec.multiply(o, staging, s.v, o);
        load_head(args.z, token, h, z);
        vec.silu_multiply(z, o, s.v, o);
      }
      store_head(args.y, token, h, o);
    }
    store_state(args.state_out, args.state_layout, slot, h, s.v, s.k, Orientation::kVK, state, staging);
  });
}

constexpr Kernel<GatedDeltaPrepStepArgs> kKernels[] = {
    {"two_pass", always_supported<GatedDeltaPrepStepArgs>, workspace, run}};

}  // namespace

KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels() { return kKernels; }

}  // namespace thalweg::cpu
