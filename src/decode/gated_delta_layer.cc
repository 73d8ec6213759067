#include <cmath>

#include "decode/layers.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::decode {
namespace {

constexpr float kL2Eps = 1e-6F;

struct Scratch {
  Tensor projected;    // [T,C+HV*V], qkv | z
  Tensor interleaved;  // [T,C+HV*V], of each key head q | k | v | z; only if the weights are laid out so
  Tensor qkv;          // [T,C], before the convolution
  Tensor z;            // [T,HV*V]
  Tensor gates;        // [T,2*HV], b | a over all heads
  Tensor o;            // [T,HV*V]
  Tensor mixed;        // [T,C], after the convolution; only for a prefill
};

Scratch take_scratch(const ModelConfig& config, const GatedDeltaWeights& w, const Step& step, Arena& arena) {
  const std::int64_t count = step.count();
  const std::int64_t channels = config.conv_channels();
  const std::int64_t values = config.value_channels();
  Scratch scratch;
  scratch.projected = step.take(arena, count, channels + values);
  scratch.qkv = column_range(scratch.projected, 0, channels);
  scratch.z = column_range(scratch.projected, channels, values);
  if (w.qkvz.defined()) scratch.interleaved = step.take(arena, count, channels + values);
  scratch.gates = step.take_f32(arena, count, std::int64_t{2} * config.value_heads);
  scratch.o = step.take(arena, count, values);
  if (!step.decode) scratch.mixed = step.take(arena, count, channels);
  return scratch;
}

// Rows [T,N] of B sequences of equal length, as [B,T/B,N].
template <class View>
View batched(const View& rows, std::int64_t batch) {
  return reshape(rows, {batch, rows.dim(0) / batch, rows.dim(1)});
}

// `heads` heads of `width` from column `first` of rows [T,N], as [B,T/B,heads,width].
template <class View>
View batched_heads(const View& rows, std::int64_t batch, std::int64_t first, std::int64_t heads, std::int64_t width) {
  return reshape(head_range(rows, first, heads, width), {batch, rows.dim(0) / batch, heads, width});
}

// From q | k | v | z of each key head to q | k | v over all heads, and z.
void split_key_heads(const ModelConfig& config, const Scratch& scratch, Step& step) {
  const std::int64_t heads = config.key_heads;
  const std::int64_t values = config.value_channels() / heads;  // of a key head
  SplitQkvzArgs split;
  split.x = head_range(scratch.interleaved, 0, heads, 2 * config.key_dim + 2 * values);
  split.q = head_range(scratch.qkv, 0, heads, config.key_dim);
  split.k = head_range(scratch.qkv, config.key_channels(), heads, config.key_dim);
  split.v = head_range(scratch.qkv, 2 * config.key_channels(), heads, values);
  split.z = head_range(scratch.z, 0, heads, values);
  step.run(split);
}

// Fills qkv, z and gates from x [T,D].
void project(const ModelConfig& config, const GatedDeltaWeights& w, Step& step, const ConstTensor& x,
             const Scratch& scratch) {
  Step::Product b{w.ba, scratch.gates};
  Step::Product a;
  if (!w.ba.defined()) {
    b = {w.b, column_range(scratch.gates, 0, config.value_heads)};
    a = {w.a, column_range(scratch.gates, config.value_heads, config.value_heads)};
  }
  if (w.qkvz.defined()) {
    step.multiply(x, {{w.qkvz, scratch.interleaved}, b, a});
    split_key_heads(config, scratch, step);
  } else if (w.qkv_and_z.defined()) {
    step.multiply(x, {{w.qkv_and_z, scratch.projected}, b, a});
  } else {
    step.multiply(x, {{w.qkv, scratch.qkv}, {w.z, scratch.z}, b, a});
  }
}

GateInputs raw_gates(const ModelConfig& config, const GatedDeltaWeights& w, const Scratch& scratch,
                     std::int64_t batch) {
  const Tensor gates = batched(scratch.gates, batch);
  return {column_range(gates, config.value_heads, config.value_heads), column_range(gates, 0, config.value_heads),
          w.a_log, w.dt_bias};
}

// Everything between the projections in one operation, for tokens in `batch` rows.
GatedDeltaPrepStepArgs step_args(const ModelConfig& config, const GatedDeltaWeights& w, std::size_t layer,
                                 const StatePool& pool, const Step& step, const Scratch& scratch, std::int64_t batch) {
  GatedDeltaPrepStepArgs args;
  args.x = batched(scratch.qkv, batch);
  args.conv_weight = w.conv;
  args.conv_state = pool.conv(layer);
  args.gates = raw_gates(config, w, scratch, batch);
  args.state_in = pool.recurrent(layer);
  args.state_out = pool.recurrent(layer);
  args.state_indices = step.batch->slots();
  args.z = batched_heads(scratch.z, batch, 0, config.value_heads, config.value_dim);
  args.norm_weight = w.norm;
  args.y = batched_heads(scratch.o, batch, 0, config.value_heads, config.value_dim);
  args.head_map = config.head_map;
  args.qk_norm = QkNorm::kL2;
  args.qk_norm_eps = kL2Eps;
  args.norm_eps = config.norm_eps;
  return args;
}

// Packed sequences of a first token and drafts, after what is pending; the drafts' inputs are kept for the next round.
void set_drafts(const ModelConfig& config, std::size_t layer, const StatePool& pool, const Step& step,
                GatedDeltaPrepStepArgs& args) {
  args.cu_seqlens = step.batch->cu_seqlens();
  const auto used = [&](const Tensor& kept) {  // [slots,R,.]
    return few_drafts(*step.batch) ? narrow(kept, 1, 0, std::min(kept.dim(1), kFewDrafts)) : kept;
  };
  args.replay_x = used(pool.draft_inputs(layer));
  const Tensor gates = used(pool.draft_gates(layer));
  args.replay_a = column_range(gates, config.value_heads, config.value_heads);
  args.replay_b = column_range(gates, 0, config.value_heads);
  args.replay_counts = step.batch->replays();
  args.drafts = true;
}

void prefill(const ModelConfig& config, const GatedDeltaWeights& w, std::size_t layer, StatePool& pool, Step& step,
             const Scratch& scratch) {
  if (step.share != nullptr) step.share->take_states(layer);
  CausalConv1dArgs conv;
  conv.x = batched(scratch.qkv, 1);
  conv.weight = w.conv;
  conv.initial_state = pool.conv(layer);
  conv.final_state = pool.conv(layer);
  conv.state_indices = step.batch->slots();
  conv.cu_seqlens = step.batch->cu_seqlens();
  conv.y = batched(scratch.mixed, 1);
  conv.activation = Activation::kSilu;
  step.run(conv);

  const std::int64_t keys = config.key_channels();
  ChunkGatedDeltaRuleArgs rule;
  rule.q = batched_heads(scratch.mixed, 1, 0, config.key_heads, config.key_dim);
  rule.k = batched_heads(scratch.mixed, 1, keys, config.key_heads, config.key_dim);
  rule.v = batched_heads(scratch.mixed, 1, 2 * keys, config.value_heads, config.value_dim);
  rule.gates = raw_gates(config, w, scratch, 1);
  rule.initial_state = pool.recurrent(layer);
  rule.final_state = pool.recurrent(layer);
  rule.state_indices = step.batch->slots();
  rule.cu_seqlens = step.batch->cu_seqlens();
  rule.o = batched_heads(scratch.o, 1, 0, config.value_heads, config.value_dim);
  rule.head_map = config.head_map;
  rule.qk_norm = QkNorm::kL2;
  rule.qk_norm_eps = kL2Eps;
  rule.bf16_operands = step.runtime.precision() == MatmulPrecision::kFast;
  step.run(rule);
  if (step.share != nullptr) step.share->give_states(layer);

  GatedRmsNormArgs norm;
  norm.x = head_range(scratch.o, 0, config.value_heads, config.value_dim);
  norm.z = head_range(scratch.z, 0, config.value_heads, config.value_dim);
  norm.weight = w.norm;
  norm.y = head_range(scratch.o, 0, config.value_heads, config.value_dim);
  norm.eps = config.norm_eps;
  step.run(norm);
}

}  // namespace

void gated_delta_layer(const ModelConfig& config, const GatedDeltaWeights& w, std::size_t layer, StatePool& pool,
                       Step& step, const ConstTensor& x, const Tensor& y) {
  const Scratch scratch = lay_out(step.scratch, [&](Arena& arena) { return take_scratch(config, w, step, arena); });
  project(config, w, step, x, scratch);
  if (step.drafts) {
    GatedDeltaPrepStepArgs args = step_args(config, w, layer, pool, step, scratch, 1);
    set_drafts(config, layer, pool, step, args);
    step.run(args);
  } else if (step.decode) {
    step.run(step_args(config, w, layer, pool, step, scratch, step.count()));
  } else {
    prefill(config, w, layer, pool, step, scratch);
  }
  step.multiply(scratch.o, w.out, y);
}

void settle_gated_delta(const ModelConfig& config, const GatedDeltaWeights& w, std::size_t layer, StatePool& pool,
                        Step& step) {
  const Scratch scratch = lay_out(step.scratch, [&](Arena& arena) { return take_scratch(config, w, step, arena); });
  GatedDeltaPrepStepArgs args = step_args(config, w, layer, pool, step, scratch, 1);
  set_drafts(config, layer, pool, step, args);
  step.run(args);
}

}  // namespace thalweg::decode
