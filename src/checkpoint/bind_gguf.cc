#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/binder.h"

namespace thalweg::model {
namespace {

// ssm_a is -exp(A_log); the operations take A_log. One so small that its exponential was rounded to nothing comes back
// as the logarithm of the smallest number.
ConstTensor log_of_decay(Binder& binder, const std::string& name, std::int64_t heads) {
  const ConstTensor decay = binder.small(name, {heads});
  auto* values = static_cast<float*>(binder.allocate(static_cast<std::size_t>(heads) * sizeof(float)));
  for (std::int64_t h = 0; h < heads; ++h) {
    const float value = element(decay, h);
    if (value > 0.0F) binder.fail(name, "values of 0 or less", std::to_string(value));
    values[h] = std::log(std::max(-value, std::numeric_limits<float>::denorm_min()));
  }
  return {values, DType::kF32, {heads}, kCpu};
}

void bind_gated_delta(Binder& binder, const std::string& layer, GatedDeltaWeights& w) {
  const ModelConfig& c = binder.config();
  const std::int64_t channels = c.conv_channels();
  const std::int64_t inner = c.value_channels();
  if (binder.has(layer + "ssm_in.weight")) {
    w.qkvz = binder.matrix(layer + "ssm_in.weight", {channels + inner, c.hidden});
  } else {
    w.qkv = binder.matrix(layer + "attn_qkv.weight", {channels, c.hidden});
    w.z = binder.matrix(layer + "attn_gate.weight", {inner, c.hidden});
  }
  if (c.architecture == "qwen3next") {
    w.ba = binder.sort_gate_rows(binder.matrix(layer + "ssm_ba.weight", {std::int64_t{2} * c.value_heads, c.hidden}));
  } else {
    w.b = binder.matrix(layer + "ssm_beta.weight", {c.value_heads, c.hidden});
    w.a = binder.matrix(layer + "ssm_alpha.weight", {c.value_heads, c.hidden});
  }
  w.conv = binder.small(layer + "ssm_conv1d.weight", {channels, c.conv_width});
  w.a_log = log_of_decay(binder, layer + "ssm_a", c.value_heads);
  // Ollama's converter leaves the suffix out.
  w.dt_bias = binder.small(layer + (binder.has(layer + "ssm_dt") ? "ssm_dt" : "ssm_dt.bias"), {c.value_heads});
  w.norm = binder.small(layer + "ssm_norm.weight", {c.value_dim});
  w.out = binder.matrix(layer + "ssm_out.weight", {c.hidden, inner});
}

void bind_attention(Binder& binder, const std::string& layer, AttentionWeights& w) {
  const ModelConfig& c = binder.config();
  const std::int64_t inner = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t keys = std::int64_t{c.kv_heads} * c.head_dim;
  if (binder.has(layer + "attn_qkv.weight")) {
    const ConstTensor all = binder.matrix(layer + "attn_qkv.weight", {2 * inner + 2 * keys, c.hidden});
    w.q = {all.row(0), all.dtype, {2 * inner, c.hidden}, all.device};
    w.k = {all.row(2 * inner), all.dtype, {keys, c.hidden}, all.device};
    w.v = {all.row(2 * inner + keys), all.dtype, {keys, c.hidden}, all.device};
  } else {
    w.q = binder.matrix(layer + "attn_q.weight", {2 * inner, c.hidden});
    w.k = binder.matrix(layer + "attn_k.weight", {keys, c.hidden});
    w.v = binder.matrix(layer + "attn_v.weight", {keys, c.hidden});
  }
  w.o = binder.matrix(layer + "attn_output.weight", {c.hidden, inner});
  w.q_norm = binder.small(layer + "attn_q_norm.weight", {c.head_dim});
  w.k_norm = binder.small(layer + "attn_k_norm.weight", {c.head_dim});
}

void bind_moe(Binder& binder, const std::string& layer, MoeWeights& w) {
  const ModelConfig& c = binder.config();
  const std::int64_t wide = c.expert_hidden;
  w.router = binder.matrix(layer + "ffn_gate_inp.weight", {c.experts, c.hidden});
  if (binder.has(layer + "ffn_gate_up_exps.weight")) {
    const ConstTensor both = binder.matrix(layer + "ffn_gate_up_exps.weight", {c.experts, 2 * wide, c.hidden});
    w.gate = both;
    w.gate.shape[1] = wide;
    w.up = w.gate;
    w.up.data = both.row(0, wide);
  } else {
    w.gate = binder.matrix(layer + "ffn_gate_exps.weight", {c.experts, wide, c.hidden});
    w.up = binder.matrix(layer + "ffn_up_exps.weight", {c.experts, wide, c.hidden});
    if (w.gate.dtype != w.up.dtype) {
      binder.fail(layer + "ffn_up_exps.weight", "the type of ffn_gate_exps, " + std::string(dtype_name(w.gate.dtype)),
                  dtype_name(w.up.dtype));
    }
  }
  w.down = binder.matrix(layer + "ffn_down_exps.weight", {c.experts, c.hidden, wide});
  if (c.shared_hidden == 0) return;
  w.shared_gate = binder.matrix(layer + "ffn_gate_shexp.weight", {c.shared_hidden, c.hidden});
  w.shared_up = binder.matrix(layer + "ffn_up_shexp.weight", {c.shared_hidden, c.hidden});
  w.shared_down = binder.matrix(layer + "ffn_down_shexp.weight", {c.hidden, c.shared_hidden});
  w.shared_router = binder.small(layer + "ffn_gate_inp_shexp.weight", {c.hidden});
}

}  // namespace

void bind_gguf(Binder& binder, Weights& weights) {
  const ModelConfig& c = binder.config();
  weights.embedding = binder.matrix("token_embd.weight", {c.vocabulary, c.hidden});
  weights.norm = binder.small("output_norm.weight", {c.hidden});
  weights.head = c.tied_head ? weights.embedding : binder.matrix("output.weight", {c.vocabulary, c.hidden});
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    LayerWeights& w = weights.layers[i];
    const std::string layer = "blk." + std::to_string(i) + ".";
    w.input_norm = binder.small(layer + "attn_norm.weight", {c.hidden});
    w.post_norm = binder.small(layer + "post_attention_norm.weight", {c.hidden});
    if (c.layers[i] == LayerKind::kGatedDelta) {
      bind_gated_delta(binder, layer, w.gated_delta);
    } else {
      bind_attention(binder, layer, w.attention);
    }
    if (c.sparse[i]) {
      bind_moe(binder, layer, w.moe);
    } else {
      w.dense.gate = binder.matrix(layer + "ffn_gate.weight", {c.dense_hidden, c.hidden});
      w.dense.up = binder.matrix(layer + "ffn_up.weight", {c.dense_hidden, c.hidden});
      w.dense.down = binder.matrix(layer + "ffn_down.weight", {c.hidden, c.dense_hidden});
    }
  }
}

}  // namespace thalweg::model
