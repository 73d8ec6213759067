// The names of tensors in a GGUF file, and the weight that each one is.

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/tensor_binder.h"

namespace thalweg::checkpoint {
namespace {

// A_log [HV] in f32: the file stores ssm_a = -exp(A_log), the operations take A_log. A value that was rounded to 0
// becomes the logarithm of the smallest number.
ConstTensor log_of_decay(TensorBinder& binder, const std::string& name, std::int64_t heads) {
  const ConstTensor decay = binder.small(name, {heads});
  auto* values = static_cast<float*>(binder.allocate(static_cast<std::size_t>(heads) * sizeof(float)));
  for (std::int64_t h = 0; h < heads; ++h) {
    const float value = element(decay, h);
    if (value > 0.0F) binder.fail(name, "values of 0 or less", std::to_string(value));
    values[h] = std::log(std::max(-value, std::numeric_limits<float>::denorm_min()));
  }
  return {values, DType::kF32, {heads}, kCpu};
}

void bind_gated_delta(TensorBinder& binder, const std::string& layer, GatedDeltaWeights& w) {
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
    w.ba =
        binder.deinterleave_gates(binder.matrix(layer + "ssm_ba.weight", {std::int64_t{2} * c.value_heads, c.hidden}));
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

void bind_attention(TensorBinder& binder, const std::string& layer, AttentionWeights& w) {
  const ModelConfig& c = binder.config();
  const std::int64_t inner = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t keys = std::int64_t{c.kv_heads} * c.head_dim;
  if (binder.has(layer + "attn_qkv.weight")) {
    const ConstTensor all = binder.matrix(layer + "attn_qkv.weight", {2 * inner + 2 * keys, c.hidden});
    w.q = narrow(all, 0, 0, 2 * inner);
    w.k = narrow(all, 0, 2 * inner, keys);
    w.v = narrow(all, 0, 2 * inner + keys, keys);
  } else {
    w.q = binder.matrix(layer + "attn_q.weight", {2 * inner, c.hidden});
    w.k = binder.matrix(layer + "attn_k.weight", {keys, c.hidden});
    w.v = binder.matrix(layer + "attn_v.weight", {keys, c.hidden});
  }
  w.o = binder.matrix(layer + "attn_output.weight", {c.hidden, inner});
  w.q_norm = binder.small(layer + "attn_q_norm.weight", {c.head_dim});
  w.k_norm = binder.small(layer + "attn_k_norm.weight", {c.head_dim});
}

void bind_moe(TensorBinder& binder, const std::string& layer, MoeWeights& w) {
  const ModelConfig& c = binder.config();
  const std::int64_t wide = c.expert_hidden;
  w.router = binder.matrix(layer + "ffn_gate_inp.weight", {c.experts, c.hidden}, TensorRole::kMoe);
  if (binder.has(layer + "ffn_gate_up_exps.weight")) {
    const ConstTensor both =
        binder.matrix(layer + "ffn_gate_up_exps.weight", {c.experts, 2 * wide, c.hidden}, TensorRole::kExpert);
    w.gate = narrow(both, 1, 0, wide);
    w.up = narrow(both, 1, wide, wide);
  } else {
    w.gate = binder.matrix(layer + "ffn_gate_exps.weight", {c.experts, wide, c.hidden}, TensorRole::kExpert);
    w.up = binder.matrix(layer + "ffn_up_exps.weight", {c.experts, wide, c.hidden}, TensorRole::kExpert);
    if (w.gate.dtype != w.up.dtype) {
      binder.fail(layer + "ffn_up_exps.weight", "the type of ffn_gate_exps, " + std::string(dtype_name(w.gate.dtype)),
                  dtype_name(w.up.dtype));
    }
  }
  w.down = binder.matrix(layer + "ffn_down_exps.weight", {c.experts, c.hidden, wide}, TensorRole::kExpert);
  if (c.shared_hidden == 0) return;
  w.shared_gate = binder.matrix(layer + "ffn_gate_shexp.weight", {c.shared_hidden, c.hidden}, TensorRole::kMoe);
  w.shared_up = binder.matrix(layer + "ffn_up_shexp.weight", {c.shared_hidden, c.hidden}, TensorRole::kMoe);
  w.shared_down = binder.matrix(layer + "ffn_down_shexp.weight", {c.hidden, c.shared_hidden}, TensorRole::kMoe);
  w.shared_router = binder.small(layer + "ffn_gate_inp_shexp.weight", {c.hidden});
}

void bind_dense(TensorBinder& binder, const std::string& layer, DenseWeights& w) {
  const ModelConfig& c = binder.config();
  w.gate = binder.matrix(layer + "ffn_gate.weight", {c.dense_hidden, c.hidden});
  w.up = binder.matrix(layer + "ffn_up.weight", {c.dense_hidden, c.hidden});
  w.down = binder.matrix(layer + "ffn_down.weight", {c.hidden, c.dense_hidden});
}

// The block after the trunk's.
void bind_mtp(TensorBinder& binder, Weights& weights) {
  const ModelConfig& c = binder.config();
  MtpWeights& w = weights.mtp;
  binder.begin_mtp();
  const std::string layer = "blk." + std::to_string(c.layers.size()) + ".";
  const std::string own = layer + "nextn.";
  const auto vocabulary_matrix = [&](const std::string& name, const ConstTensor& of_trunk) {
    return binder.has(name) ? binder.matrix(name, {c.vocabulary, c.hidden}) : of_trunk;
  };
  w.fc = binder.matrix(own + "eh_proj.weight", {c.hidden, 2 * c.hidden});
  w.embedding_norm = binder.small(own + "enorm.weight", {c.hidden});
  w.hidden_norm = binder.small(own + "hnorm.weight", {c.hidden});
  const std::string norm = own + "shared_head_norm.weight";
  w.norm = binder.has(norm) ? binder.small(norm, {c.hidden}) : weights.norm;
  w.embedding = vocabulary_matrix(own + "embed_tokens.weight", weights.embedding);
  w.head = vocabulary_matrix(own + "shared_head_head.weight", weights.head);
  w.layer.input_norm = binder.small(layer + "attn_norm.weight", {c.hidden});
  w.layer.post_norm = binder.small(layer + "post_attention_norm.weight", {c.hidden});
  bind_attention(binder, layer, w.layer.attention);
  if (c.mtp_sparse) {
    bind_moe(binder, layer, w.layer.moe);
  } else {
    bind_dense(binder, layer, w.layer.dense);
  }
}

}  // namespace

void bind_gguf(TensorBinder& binder, Weights& weights) {
  const ModelConfig& c = binder.config();
  weights.embedding = binder.matrix("token_embd.weight", {c.vocabulary, c.hidden});
  weights.norm = binder.small("output_norm.weight", {c.hidden});
  weights.head = c.tied_head ? weights.embedding : binder.matrix("output.weight", {c.vocabulary, c.hidden});
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    LayerWeights& w = weights.layers[i];
    binder.begin_layer(i);
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
      bind_dense(binder, layer, w.dense);
    }
  }
  if (c.has_mtp) bind_mtp(binder, weights);
}

}  // namespace thalweg::checkpoint
