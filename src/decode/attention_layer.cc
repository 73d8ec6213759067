#include "decode/layers.h"

namespace thalweg::decode {
namespace {

void normalize_and_rotate(const ModelConfig& config, const Tensor& heads, const ConstTensor& norm_weight, Step& step) {
  RopeArgs rope;
  rope.x = heads;
  rope.positions = step.batch->positions();
  rope.frequencies = step.rope_frequencies;
  rope.norm_weight = norm_weight;
  rope.y = heads;
  rope.rotary_dim = config.rotary_dim;
  rope.theta = config.rope_theta;
  rope.scale = config.rope_scale;
  rope.norm_eps = config.norm_eps;
  rope.norm_weight_plus_one = config.norm_plus_one;
  step.run(rope);
}

struct Scratch {
  Tensor projected;   // [T,HQ*2*A+2*HKV*A]
  Tensor q_and_gate;  // [T,HQ*2*A], of each head q | gate
  Tensor k;           // [T,HKV*A]
  Tensor v;           // [T,HKV*A]
  Tensor o;           // [T,HQ*A]
};

Scratch take_scratch(const ModelConfig& config, const Step& step, Arena& arena) {
  const std::int64_t inner = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t keys = std::int64_t{config.kv_heads} * config.head_dim;
  Scratch scratch;
  scratch.projected = step.take(arena, step.count(), 2 * inner + 2 * keys);
  scratch.q_and_gate = column_range(scratch.projected, 0, 2 * inner);
  scratch.k = column_range(scratch.projected, 2 * inner, keys);
  scratch.v = column_range(scratch.projected, 2 * inner + keys, keys);
  scratch.o = step.take(arena, step.count(), inner);
  return scratch;
}

void project(const AttentionWeights& w, Step& step, const ConstTensor& x, const Scratch& scratch) {
  const std::int64_t queries = scratch.q_and_gate.dim(1);
  const std::int64_t keys = scratch.k.dim(1);
  if (w.qkv.defined()) {
    step.multiply(x, w.qkv, scratch.projected);
    return;
  }
  const Step::Product v{w.v, scratch.v};
  if (w.qk.defined()) {
    step.multiply(x, {{w.qk, column_range(scratch.projected, 0, queries + keys)}, v});
  } else {
    step.multiply(x, {{w.q, scratch.q_and_gate}, {w.k, scratch.k}, v});
  }
}

void store(const ModelConfig& config, const AttentionWeights& w, std::size_t layer, const StatePool& pool, Step& step,
           const Scratch& scratch) {
  const std::int64_t width = config.head_dim;
  const Tensor k = head_range(scratch.k, 0, config.kv_heads, width);
  normalize_and_rotate(config, k, w.k_norm, step);
  StoreKvArgs store;
  store.k = k;
  store.v = head_range(scratch.v, 0, config.kv_heads, width);
  store.cu_seqlens = step.batch->cu_seqlens();
  store.lengths = step.batch->lengths();
  store.slots = step.batch->slots();
  store.k_cache = pool.keys(layer);
  store.v_cache = pool.values(layer);
  step.run(store);
}

}  // namespace

void store_keys_and_values(const ModelConfig& config, const AttentionWeights& w, std::size_t layer, StatePool& pool,
                           Step& step, const ConstTensor& x) {
  const Scratch scratch = lay_out(step.scratch, [&](Arena& arena) { return take_scratch(config, step, arena); });
  if (w.qkv.defined() || w.qk.defined()) {
    project(w, step, x, scratch);
  } else {
    step.multiply(x, {{w.k, scratch.k}, {w.v, scratch.v}});
  }
  store(config, w, layer, pool, step, scratch);
}

void attention_layer(const ModelConfig& config, const AttentionWeights& w, std::size_t layer, StatePool& pool,
                     Step& step, const ConstTensor& x, const Tensor& y) {
  const std::int64_t width = config.head_dim;
  const Scratch scratch = lay_out(step.scratch, [&](Arena& arena) { return take_scratch(config, step, arena); });
  project(w, step, x, scratch);
  const Tensor q_and_gate = head_range(scratch.q_and_gate, 0, config.heads, 2 * width);
  const Tensor q = column_range(q_and_gate, 0, width);
  normalize_and_rotate(config, q, w.q_norm, step);
  store(config, w, layer, pool, step, scratch);
  if (step.share != nullptr) step.share->pass_cache(layer);

  AttentionArgs args;
  args.q = q;
  args.k_cache = pool.keys(layer);
  args.v_cache = pool.values(layer);
  args.cu_seqlens = step.batch->cu_seqlens();
  args.lengths = step.batch->lengths();
  args.slots = step.batch->slots();
  args.gate = column_range(q_and_gate, width, width);
  args.o = head_range(scratch.o, 0, config.heads, width);
  args.bf16_operands = step.runtime.precision() == MatmulPrecision::kFast;
  step.run(args);
  step.multiply(scratch.o, w.o, y);
}

}  // namespace thalweg::decode
