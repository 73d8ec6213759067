#include "decode/layers.h"

namespace thalweg::decode {
namespace {

void normalize_and_rotate(const ModelConfig& config, const Tensor& heads, const ConstTensor& weight, Step& step) {
  RmsNormArgs norm;
  norm.x = heads;
  norm.weight = weight;
  norm.y = heads;
  norm.eps = config.norm_eps;
  norm.weight_plus_one = config.norm_plus_one;
  step.run(norm);

  RopeArgs rope;
  rope.x = heads;
  rope.positions = step.positions_view();
  rope.y = heads;
  rope.rotary_dim = config.rotary_dim;
  rope.theta = config.rope_theta;
  const std::vector<float>& frequencies = config.rope_frequencies;
  if (!frequencies.empty()) {
    rope.frequencies =
        ConstTensor(frequencies.data(), DType::kF32, {static_cast<std::int64_t>(frequencies.size())}, kCpu);
  }
  rope.scale = config.rope_scale;
  step.run(rope);
}

struct Scratch {
  Tensor q_and_gate;  // [T,HQ*2*A], of each head q | gate
  Tensor k;           // [T,HKV*A]
  Tensor v;           // [T,HKV*A]
  Tensor o;           // [T,HQ*A]
};

Scratch take_scratch(const ModelConfig& config, std::int64_t count, Arena& arena) {
  const std::int64_t inner = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t keys = std::int64_t{config.kv_heads} * config.head_dim;
  Scratch scratch;
  scratch.q_and_gate = take_matrix(arena, count, 2 * inner);
  scratch.k = take_matrix(arena, count, keys);
  scratch.v = take_matrix(arena, count, keys);
  scratch.o = take_matrix(arena, count, inner);
  return scratch;
}

}  // namespace

void attention_layer(const ModelConfig& config, const AttentionWeights& w, std::size_t layer, StatePool& pool,
                     Step& step, const ConstTensor& x, const Tensor& y) {
  const std::int64_t count = step.count();
  const std::int64_t width = config.head_dim;
  const Scratch scratch = lay_out(step.scratch, [&](Arena& arena) { return take_scratch(config, count, arena); });
  step.multiply(x, w.q, scratch.q_and_gate);
  step.multiply(x, w.k, scratch.k);
  step.multiply(x, w.v, scratch.v);

  const Tensor q_and_gate = reshape(scratch.q_and_gate, {count, config.heads, 2 * width});
  const Tensor q = column_range(q_and_gate, 0, width);
  const Tensor k = reshape(scratch.k, {count, config.kv_heads, width});
  normalize_and_rotate(config, q, w.q_norm, step);
  normalize_and_rotate(config, k, w.k_norm, step);

  StoreKvArgs store;
  store.k = k;
  store.v = reshape(scratch.v, {count, config.kv_heads, width});
  store.cu_seqlens = step.cu_seqlens_view();
  store.lengths = step.lengths_view();
  store.slots = step.slots_view();
  store.k_cache = pool.keys(layer);
  store.v_cache = pool.values(layer);
  step.run(store);

  AttentionArgs args;
  args.q = q;
  args.k_cache = store.k_cache;
  args.v_cache = store.v_cache;
  args.cu_seqlens = step.cu_seqlens_view();
  args.lengths = step.lengths_view();
  args.slots = step.slots_view();
  args.gate = column_range(q_and_gate, width, width);
  args.o = reshape(scratch.o, {count, config.heads, width});
  step.run(args);
  step.multiply(scratch.o, w.o, y);
}

}  // namespace thalweg::decode
