// The fused step with packed sequences, replays and drafts. A sequence's tokens are those that are replayed, then its
// own; "committed" are those that change the states in memory. What follows them, drafts, runs on a copy of a head's
// state in a worker's scratch, so that a state is read and written once. Every token's arithmetic is that of the kernel
// for single tokens.

#include <algorithm>
#include <cstring>

#include "core/threads.h"
#include "cpu/gated_delta.h"
#include "cpu/gated_delta_rule.h"
#include "cpu/nn.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

struct Sizes {
  std::int64_t channels, hk, hv, k, v, taps, most_replayed;
  Sequences sequences;

  explicit Sizes(const GatedDeltaPrepStepArgs& args)
      : channels(args.x.dim(2)),
        hv(args.state_in.dim(1)),
        k(args.state_in.dim(args.state_layout == StateLayout::kVK ? 3 : 2)),
        v(args.state_in.dim(args.state_layout == StateLayout::kVK ? 2 : 3)),
        taps(args.conv_weight.defined() ? args.conv_weight.dim(1) : 1),
        most_replayed(args.replay_x.defined() ? args.replay_x.dim(1) : 0),
        sequences(args.cu_seqlens, args.x.dim(0), args.x.dim(1)) {
    hk = (channels - hv * v) / (2 * k);
  }
  std::int64_t per_worker() const { return arena_floats(k * v, k, v, v, state_staging(v, k)); }
  // Of a copy of a convolution's window; no dtype is wider than a float.
  std::int64_t window() const { return channels * (taps - 1); }
};

// One sequence of the call, and where its tokens are in the prepared rows.
struct Part {
  std::int64_t n = 0;
  std::int64_t slot = 0;
  std::int64_t replayed = 0;
  std::int64_t own = 0;        // tokens of x
  std::int64_t committed = 0;  // of replayed + own
  std::int64_t first = 0;      // prepared row
  std::int64_t row = 0;        // of x
  std::int64_t begin = 0;      // token of that row

  Part(const GatedDeltaPrepStepArgs& args, const Sizes& s, std::int64_t number)
      : n(number),
        slot(state_slot(args.state_indices, n)),
        own(s.sequences.length(n)),
        row(s.sequences.row(n)),
        begin(s.sequences.begin(n)) {
    if (s.most_replayed > 0 && slot >= 0) replayed = static_cast<const std::int32_t*>(args.replay_counts.data)[n];
    committed = replayed + (args.drafts ? std::min<std::int64_t>(1, own) : own);
    first = n * s.most_replayed + row * args.x.dim(1) + begin;
  }
  std::int64_t count() const { return replayed + own; }
};

CausalConv1dUpdateArgs convolution(const GatedDeltaPrepStepArgs& args, const ConstTensor& x, const Tensor& window,
                                   float* prepared) {
  CausalConv1dUpdateArgs conv;
  conv.x = x;
  conv.weight = args.conv_weight;
  conv.conv_state = window;
  conv.y = Tensor(prepared, DType::kF32, {1, x.dim(1), x.dim(2)}, x.device);
  conv.activation = Activation::kSilu;
  return conv;
}

// Tokens [begin, begin + count) of row `row` of x, as a batch of one.
ConstTensor tokens_of(const ConstTensor& x, std::int64_t row, std::int64_t begin, std::int64_t count) {
  return narrow(narrow(x, 0, row, 1), 1, begin, count);
}

// The rows of a sequence, convolved: those that are committed in its own window, the others in `copy`.
void convolve(const GatedDeltaPrepStepArgs& args, const Sizes& s, const Part& part, float* rows, void* copy,
              const Workspace& rest, const Stream& stream) {
  const auto& kernel = causal_conv1d_update_kernels().front();
  const Tensor copied(copy, args.conv_state.dtype, {1, s.channels, s.taps - 1}, args.x.device);
  const auto row_bytes = static_cast<std::size_t>(bytes_of(copied.dtype, s.taps - 1));
  Tensor window = copied;
  if (part.slot >= 0) {
    window = narrow(args.conv_state, 0, part.slot, 1);
  } else {
    std::memset(copy, 0, row_bytes * static_cast<std::size_t>(s.channels));
  }
  const auto run = [&](const ConstTensor& x, std::int64_t at, const Tensor& in) {
    if (x.dim(1) > 0) kernel.run(convolution(args, x, in, rows + at * s.channels), rest, stream);
  };
  if (part.replayed > 0) run(tokens_of(args.replay_x, part.slot, 0, part.replayed), 0, window);
  const std::int64_t kept = part.committed - part.replayed;
  run(tokens_of(args.x, part.row, part.begin, kept), part.replayed, window);
  if (kept == part.own) return;
  if (part.slot >= 0) {
    for (std::int64_t c = 0; c < s.channels; ++c) std::memcpy(copied.row(0, c), window.row(0, c), row_bytes);
  }
  run(tokens_of(args.x, part.row, part.begin + kept, part.own - kept), part.committed, copied);
}

void load_rows(const ConstTensor& x, std::int64_t channels, float* rows) {
  for (std::int64_t t = 0; t < x.dim(1); ++t) {
    vector_ops().load(x.dtype, x.row(0, t), channels, rows + t * channels);
  }
}

// Normalizes q and k of each key head and scales q.
void normalize_heads(const GatedDeltaPrepStepArgs& args, const Sizes& s, float* prepared, const Workspace& rest,
                     const Stream& stream) {
  const VectorOps& vec = vector_ops();
  const float scale = resolve_scale(args.scale, s.k);
  const double head_ns = static_cast<double>(2 * (s.most_replayed + 1) * s.k) * tuning::kElementNs;
  parallel_for(stream, s.sequences.count() * s.hk, head_ns, [&](std::int64_t task, int worker) {
    Arena scratch = worker_arena(rest, s.per_worker(), worker);
    float* weight = scratch.take<float>(s.k);
    const std::int64_t head = task % s.hk;
    const Part part(args, s, task / s.hk);
    for (std::int64_t t = 0; t < part.count(); ++t) {
      float* q = prepared + (part.first + t) * s.channels + head * s.k;
      float* k = q + s.hk * s.k;
      normalize(args.qk_norm, args.qk_norm_eps, args.q_norm_weight, head, s.k, q, weight);
      normalize(args.qk_norm, args.qk_norm_eps, args.k_norm_weight, head, s.k, k, weight);
      vec.scale(scale, q, s.k, q);
    }
  });
}

// One head of a sequence from its state on.
void run_head(const GatedDeltaPrepStepArgs& args, const Sizes& s, const Part& part, std::int64_t h,
              const float* prepared, Arena scratch) {
  const VectorOps& vec = vector_ops();
  auto* const own_state = scratch.take<float>(s.k * s.v);  // [V,K]
  float* o = scratch.take<float>(s.v);
  float* z = scratch.take<float>(s.v);
  float* staging = scratch.take<float>(state_staging(s.v, s.k));
  const std::int64_t kh = key_head(args.head_map, h, s.hk, s.hv);
  float* const in_place = state_in_place(args.state_out, args.state_layout, part.slot, h);
  float* state = in_place != nullptr ? in_place : own_state;
  if (in_place == nullptr || args.state_in.row(part.slot, h) != in_place) {
    load_state(args.state_in, args.state_layout, part.slot, h, s.v, s.k, Orientation::kVK, state, staging);
  }
  const GateInputs replayed{args.replay_a, args.replay_b, args.gates.a_log, args.gates.dt_bias};
  const auto commit = [&] {
    if (in_place == nullptr) {
      store_state(args.state_out, args.state_layout, part.slot, h, s.v, s.k, Orientation::kVK, state, staging);
    }
  };
  for (std::int64_t t = 0; t < part.count(); ++t) {
    if (t == part.committed) {
      commit();
      if (state != own_state) std::copy_n(state, s.k * s.v, own_state);
      state = own_state;
    }
    const std::int64_t i = t - part.replayed;
    const bool is_own = i >= 0;
    const Chunk token{part.n, is_own ? part.row : part.slot, is_own ? part.begin + i : t, 1, t};
    const float* x = prepared + (part.first + t) * s.channels;
    float g = 0.0F;
    float beta = 0.0F;
    compute_gates(is_own ? args.gates : replayed, token, h, &g, &beta);
    vec.delta_step(state, s.v, s.k, x + kh * s.k, x + (s.hk + kh) * s.k, x + 2 * s.hk * s.k + h * s.v, std::exp(g),
                   beta, o);
    if (args.snapshots.defined()) {
      store_state(state_pool(args.snapshots, token.row, token.begin), args.state_layout, 0, h, s.v, s.k,
                  Orientation::kVK, state, staging);
    }
    if (is_own) store_step_output(args, token, h, o, z, staging);
  }
  if (part.committed == part.count()) commit();
}

// Keeps the inputs of a sequence's drafts where the next call replays them.
void keep_drafts(const GatedDeltaPrepStepArgs& args, const Part& part) {
  if (part.slot < 0) return;
  const auto keep = [&](const ConstTensor& from, const Tensor& to) {
    for (std::int64_t t = 0; t + 1 < part.own; ++t) {
      std::memcpy(to.row(part.slot, t), from.row(part.row, part.begin + 1 + t),
                  static_cast<std::size_t>(bytes_of(from.dtype, from.dim(2))));
    }
  };
  keep(args.x, args.replay_x);
  keep(args.gates.a, args.replay_a);
  keep(args.gates.b, args.replay_b);
}

// Scratch of a call: the rows of all tokens, a window, and what a kernel's workers need.
struct Memory {
  Memory(const GatedDeltaPrepStepArgs& args, const Sizes& s, const Workspace& workspace) {
    Arena arena(workspace);
    lay_out(args, s, arena);
    rest = {static_cast<std::byte*>(workspace.data) + arena.used(), 0};
  }
  static std::size_t bytes(const GatedDeltaPrepStepArgs& args, const Sizes& s) {
    Arena arena;
    Memory().lay_out(args, s, arena);
    return arena.used();
  }
  float* prepared = nullptr;  // [N*R + B*T,channels]
  float* window = nullptr;    // [channels,W-1]
  Workspace rest;

 private:
  Memory() = default;
  void lay_out(const GatedDeltaPrepStepArgs& args, const Sizes& s, Arena& arena) {
    const std::int64_t rows = s.sequences.count() * s.most_replayed + args.x.dim(0) * args.x.dim(1);
    prepared = arena.take<float>(rows * s.channels);
    window = arena.take<float>(s.window());
  }
};

}  // namespace

std::size_t replay_step_workspace(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  const Sizes s(args);
  std::size_t rest = worker_bytes(s.per_worker(), stream);
  if (args.conv_weight.defined()) {
    const CausalConv1dUpdateArgs conv = convolution(args, args.x, args.conv_state, nullptr);
    rest = std::max(rest, causal_conv1d_update_kernels().front().workspace(conv, stream));
  }
  return Memory::bytes(args, s) + rest;
}

void run_replay_step(const GatedDeltaPrepStepArgs& args, Workspace workspace, const Stream& stream) {
  const Sizes s(args);
  const Memory memory(args, s, workspace);
  for (std::int64_t n = 0; n < s.sequences.count(); ++n) {
    const Part part(args, s, n);
    float* rows = memory.prepared + part.first * s.channels;
    if (args.conv_weight.defined()) {
      convolve(args, s, part, rows, memory.window, memory.rest, stream);
    } else {
      if (part.replayed > 0) load_rows(tokens_of(args.replay_x, part.slot, 0, part.replayed), s.channels, rows);
      load_rows(tokens_of(args.x, part.row, part.begin, part.own), s.channels, rows + part.replayed * s.channels);
    }
  }
  normalize_heads(args, s, memory.prepared, memory.rest, stream);
  const double step_ns = static_cast<double>((s.most_replayed + 1) * s.k * s.v) * tuning::kElementNs;
  parallel_for(stream, s.sequences.count() * s.hv, step_ns, [&](std::int64_t task, int worker) {
    run_head(args, s, Part(args, s, task / s.hv), task % s.hv, memory.prepared,
             worker_arena(memory.rest, s.per_worker(), worker));
  });
  if (!args.drafts || s.most_replayed == 0) return;
  for (std::int64_t n = 0; n < s.sequences.count(); ++n) keep_drafts(args, Part(args, s, n));
}

}  // namespace thalweg::cpu
