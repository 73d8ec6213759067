#include "decode/layers.h"

namespace thalweg::model {
namespace {

void normalise_and_turn(const ModelConfig& config, const Tensor& heads, const ConstTensor& weight, Step& step) {
  RmsNormArgs norm;
  norm.x = heads;
  norm.weight = weight;
  norm.y = heads;
  norm.eps = config.norm_eps;
  norm.weight_plus_one = config.norm_plus_one;
  step.run(norm);

  RopeArgs turn;
  turn.x = heads;
  turn.positions = step.positions_view();
  turn.y = heads;
  turn.rotary_dim = config.rotary_dim;
  turn.theta = config.rope_theta;
  step.run(turn);
}

}  // namespace

void attention_layer(const ModelConfig& config, const AttentionWeights& w, std::size_t layer, StatePool& pool,
                     Step& step, const ConstTensor& x, const Tensor& y) {
  const std::int64_t count = step.count();
  const std::int64_t width = config.head_dim;
  const std::int64_t inner = config.heads * width;
  const std::int64_t keys = config.kv_heads * width;
  Carver carver(step, count * (3 * inner + 2 * keys));
  const Tensor q_and_gate = carver.take(count, 2 * inner);
  const Tensor key_rows = carver.take(count, keys);
  const Tensor value_rows = carver.take(count, keys);
  const Tensor o = carver.take(count, inner);
  step.multiply(x, w.q, q_and_gate);
  step.multiply(x, w.k, key_rows);
  step.multiply(x, w.v, value_rows);

  Tensor q(q_and_gate.data, DType::kF32, {count, config.heads, width}, q_and_gate.device);
  q.strides = {2 * inner, 2 * width, 1};
  Tensor gate = q;
  gate.data = static_cast<float*>(q.data) + width;
  const Tensor k(key_rows.data, DType::kF32, {count, config.kv_heads, width}, key_rows.device);
  const Tensor v(value_rows.data, DType::kF32, {count, config.kv_heads, width}, value_rows.device);
  normalise_and_turn(config, q, w.q_norm, step);
  normalise_and_turn(config, k, w.k_norm, step);

  StoreKvArgs store;
  store.k = k;
  store.v = v;
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
  args.gate = gate;
  args.o = Tensor(o.data, DType::kF32, {count, config.heads, width}, o.device);
  step.run(args);
  step.multiply(o, w.o, y);
}

}  // namespace thalweg::model
