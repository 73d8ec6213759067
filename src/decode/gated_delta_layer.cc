#include <cmath>

#include "decode/layers.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::model {
namespace {

constexpr float kL2Eps = 1e-6F;

// `heads` heads of `width` from column `first` of rows [T,..], as [B,T/B,heads,width].
template <class View>
View heads_of(const View& rows, std::int64_t batch, std::int64_t first, std::int64_t heads, std::int64_t width) {
  View view(static_cast<decltype(rows.data)>(nullptr), rows.dtype, {batch, rows.dim(0) / batch, heads, width},
            rows.device);
  const std::int64_t row = rows.stride(0);
  view.data = static_cast<float*>(rows.data) + first;
  view.strides = {rows.dim(0) / batch * row, row, width, 1};
  return view;
}

// Columns as [B,T/B,count].
Tensor columns_of(const Tensor& rows, std::int64_t batch, std::int64_t first, std::int64_t count) {
  Tensor view(static_cast<float*>(rows.data) + first, DType::kF32, {batch, rows.dim(0) / batch, count}, kCpu);
  view.strides = {rows.dim(0) / batch * rows.stride(0), rows.stride(0), 1};
  return view;
}

struct Projections {
  Tensor qkv;  // [T,C]
  Tensor z;    // [T,HV*V]
  Tensor b;    // [B,T/B,HV]
  Tensor a;    // [B,T/B,HV]
};

// Key heads in turn, each q | k | v | z, to q | k | v and z over all heads.
void split_key_heads(const ModelConfig& config, const Tensor& together, const Projections& p, Step& step) {
  const std::int64_t heads = config.key_heads;
  const std::int64_t values = config.value_channels() / heads;
  // Columns of head h from first + h * width on.
  const auto part = [&](const Tensor& rows, std::int64_t first, std::int64_t width) {
    Tensor view(static_cast<float*>(rows.data) + first, DType::kF32, {rows.dim(0), heads, width}, kCpu);
    view.strides[0] = rows.stride(0);
    return view;
  };
  SplitQkvzArgs split;
  split.x = part(together, 0, 2 * config.key_dim + 2 * values);
  split.q = part(p.qkv, 0, config.key_dim);
  split.k = part(p.qkv, config.key_channels(), config.key_dim);
  split.v = part(p.qkv, 2 * config.key_channels(), values);
  split.z = part(p.z, 0, values);
  step.run(split);
}

Projections project(const ModelConfig& config, const GatedDeltaWeights& w, Step& step, const ConstTensor& x,
                    Carver& carver, std::int64_t batch) {
  const std::int64_t count = step.count();
  const std::int64_t heads = config.value_heads;
  Projections p;
  p.qkv = carver.take(count, config.conv_channels());
  p.z = carver.take(count, config.value_channels());
  if (w.qkvz.defined()) {
    const Tensor together = carver.take(count, config.conv_channels() + config.value_channels());
    step.multiply(x, w.qkvz, together);
    split_key_heads(config, together, p, step);
  } else {
    step.multiply(x, w.qkv, p.qkv);
    step.multiply(x, w.z, p.z);
  }
  const Tensor gates = carver.take(count, 2 * heads);
  if (w.ba.defined()) {
    step.multiply(x, w.ba, gates);
  } else {
    Tensor b = gates;
    b.shape[1] = heads;
    Tensor a = b;
    a.data = static_cast<float*>(gates.data) + heads;
    step.multiply(x, w.b, b);
    step.multiply(x, w.a, a);
  }
  p.b = columns_of(gates, batch, 0, heads);
  p.a = columns_of(gates, batch, heads, heads);
  return p;
}

// One token of each sequence: everything between the projections in one operation.
void decode(const ModelConfig& config, const GatedDeltaWeights& w, std::size_t layer, StatePool& pool, Step& step,
            const Projections& p, const Tensor& o) {
  const std::int64_t count = step.count();
  GatedDeltaPrepStepArgs args;
  args.x = columns_of(p.qkv, count, 0, config.conv_channels());
  args.conv_weight = w.conv;
  args.conv_state = pool.conv(layer);
  args.gates = {p.a, p.b, w.a_log, w.dt_bias};
  args.state_in = pool.recurrent(layer);
  args.state_out = pool.recurrent(layer);
  args.state_indices = step.slots_view();
  args.z = heads_of(p.z, count, 0, config.value_heads, config.value_dim);
  args.norm_weight = w.norm;
  args.y = heads_of(o, count, 0, config.value_heads, config.value_dim);
  args.head_map = config.head_map;
  args.scale = 1.0F / std::sqrt(static_cast<float>(config.key_dim));
  args.qk_norm = QkNorm::kL2;
  args.qk_norm_eps = kL2Eps;
  args.norm_eps = config.norm_eps;
  step.run(args);
}

void prefill(const ModelConfig& config, const GatedDeltaWeights& w, std::size_t layer, StatePool& pool, Step& step,
             const Projections& p, const Tensor& mixed, const Tensor& o) {
  CausalConv1dArgs conv;
  conv.x = columns_of(p.qkv, 1, 0, config.conv_channels());
  conv.weight = w.conv;
  conv.initial_state = pool.conv(layer);
  conv.final_state = pool.conv(layer);
  conv.state_indices = step.slots_view();
  conv.cu_seqlens = step.cu_seqlens_view();
  conv.y = columns_of(mixed, 1, 0, config.conv_channels());
  conv.activation = Activation::kSilu;
  step.run(conv);

  const std::int64_t keys = config.key_channels();
  ChunkGatedDeltaRuleArgs rule;
  rule.q = heads_of(mixed, 1, 0, config.key_heads, config.key_dim);
  rule.k = heads_of(mixed, 1, keys, config.key_heads, config.key_dim);
  rule.v = heads_of(mixed, 1, 2 * keys, config.value_heads, config.value_dim);
  rule.gates = {p.a, p.b, w.a_log, w.dt_bias};
  rule.initial_state = pool.recurrent(layer);
  rule.final_state = pool.recurrent(layer);
  rule.state_indices = step.slots_view();
  rule.cu_seqlens = step.cu_seqlens_view();
  rule.o = heads_of(o, 1, 0, config.value_heads, config.value_dim);
  rule.head_map = config.head_map;
  rule.qk_norm = QkNorm::kL2;
  rule.qk_norm_eps = kL2Eps;
  step.run(rule);

  GatedRmsNormArgs norm;
  norm.x = Tensor(o.data, DType::kF32, {step.count(), config.value_heads, config.value_dim}, o.device);
  norm.z = Tensor(p.z.data, DType::kF32, {step.count(), config.value_heads, config.value_dim}, p.z.device);
  norm.weight = w.norm;
  norm.y = Tensor(o.data, DType::kF32, {step.count(), config.value_heads, config.value_dim}, o.device);
  norm.eps = config.norm_eps;
  step.run(norm);
}

}  // namespace

void gated_delta_layer(const ModelConfig& config, const GatedDeltaWeights& w, std::size_t layer, StatePool& pool,
                       Step& step, const ConstTensor& x, const Tensor& y) {
  const std::int64_t count = step.count();
  const std::int64_t channels = config.conv_channels();
  const std::int64_t inner = config.value_channels();
  Carver carver(step, count * (3 * channels + 3 * inner + 2 * config.value_heads));
  const Projections p = project(config, w, step, x, carver, step.decode ? count : 1);
  const Tensor o = carver.take(count, inner);
  if (step.decode) {
    decode(config, w, layer, pool, step, p, o);
  } else {
    prefill(config, w, layer, pool, step, p, carver.take(count, channels), o);
  }
  step.multiply(o, w.out, y);
}

}  // namespace thalweg::model
