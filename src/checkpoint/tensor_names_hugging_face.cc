// The names of tensors in a Hugging Face file, and the weight that each one is.

#include "checkpoint/config_checks.h"
#include "checkpoint/tensor_binder.h"

namespace thalweg::checkpoint {
namespace {

void bind_gated_delta(TensorBinder& binder, const std::string& layer, GatedDeltaWeights& w) {
  const ModelConfig& c = binder.config();
  const std::int64_t channels = c.conv_channels();
  const std::int64_t inner = c.value_channels();
  if (c.architecture == "qwen3next") {
    w.qkvz = binder.matrix(layer + "in_proj_qkvz.weight", {channels + inner, c.hidden});
    w.ba = binder.deinterleave_gates(
        binder.matrix(layer + "in_proj_ba.weight", {std::int64_t{2} * c.value_heads, c.hidden}));
  } else {
    w.qkv = binder.matrix(layer + "in_proj_qkv.weight", {channels, c.hidden});
    w.z = binder.matrix(layer + "in_proj_z.weight", {inner, c.hidden});
    w.b = binder.matrix(layer + "in_proj_b.weight", {c.value_heads, c.hidden});
    w.a = binder.matrix(layer + "in_proj_a.weight", {c.value_heads, c.hidden});
  }
  w.conv = binder.small(layer + "conv1d.weight", {channels, c.conv_width});
  w.a_log = binder.small(layer + "A_log", {c.value_heads});
  w.dt_bias = binder.small(layer + "dt_bias", {c.value_heads});
  w.norm = binder.small(layer + "norm.weight", {c.value_dim});
  w.out = binder.matrix(layer + "out_proj.weight", {c.hidden, inner});
}

void bind_attention(TensorBinder& binder, const std::string& layer, AttentionWeights& w) {
  const ModelConfig& c = binder.config();
  const std::int64_t inner = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t keys = std::int64_t{c.kv_heads} * c.head_dim;
  w.q = binder.matrix(layer + "q_proj.weight", {2 * inner, c.hidden});
  w.k = binder.matrix(layer + "k_proj.weight", {keys, c.hidden});
  w.v = binder.matrix(layer + "v_proj.weight", {keys, c.hidden});
  w.o = binder.matrix(layer + "o_proj.weight", {c.hidden, inner});
  w.q_norm = binder.small(layer + "q_norm.weight", {c.head_dim});
  w.k_norm = binder.small(layer + "k_norm.weight", {c.head_dim});
}

ConstTensor bind_experts(TensorBinder& binder, const std::string& layer, const std::string& name, std::int64_t rows,
                         std::int64_t columns) {
  std::vector<ConstTensor> experts;
  for (int e = 0; e < binder.config().experts; ++e) {
    std::string expert = layer;
    expert.append("experts.").append(std::to_string(e)).append(".").append(name).append(".weight");
    experts.push_back(binder.matrix(expert, {rows, columns}, TensorRole::kExpert));
    if (experts.back().dtype != experts.front().dtype) {
      binder.fail(expert, "the type of the other experts, " + std::string(dtype_name(experts.front().dtype)),
                  dtype_name(experts.back().dtype));
    }
  }
  return binder.stack(experts);
}

void bind_moe(TensorBinder& binder, const std::string& layer, MoeWeights& w) {
  const ModelConfig& c = binder.config();
  const std::int64_t wide = c.expert_hidden;
  w.router = binder.matrix(layer + "gate.weight", {c.experts, c.hidden}, TensorRole::kMoe);
  if (binder.has(layer + "experts.gate_up_proj")) {
    const ConstTensor both =
        binder.matrix(layer + "experts.gate_up_proj", {c.experts, 2 * wide, c.hidden}, TensorRole::kExpert);
    w.gate = narrow(both, 1, 0, wide);
    w.up = narrow(both, 1, wide, wide);
    w.down = binder.matrix(layer + "experts.down_proj", {c.experts, c.hidden, wide}, TensorRole::kExpert);
  } else {
    w.gate = bind_experts(binder, layer, "gate_proj", wide, c.hidden);
    w.up = bind_experts(binder, layer, "up_proj", wide, c.hidden);
    w.down = bind_experts(binder, layer, "down_proj", c.hidden, wide);
  }
  if (c.shared_hidden == 0) return;
  const std::string shared = layer + "shared_expert.";
  w.shared_gate = binder.matrix(shared + "gate_proj.weight", {c.shared_hidden, c.hidden}, TensorRole::kMoe);
  w.shared_up = binder.matrix(shared + "up_proj.weight", {c.shared_hidden, c.hidden}, TensorRole::kMoe);
  w.shared_down = binder.matrix(shared + "down_proj.weight", {c.hidden, c.shared_hidden}, TensorRole::kMoe);
  w.shared_router = binder.small(layer + "shared_expert_gate.weight", {c.hidden});
}

void bind_dense(TensorBinder& binder, const std::string& layer, DenseWeights& w) {
  const ModelConfig& c = binder.config();
  w.gate = binder.matrix(layer + "gate_proj.weight", {c.dense_hidden, c.hidden});
  w.up = binder.matrix(layer + "up_proj.weight", {c.dense_hidden, c.hidden});
  w.down = binder.matrix(layer + "down_proj.weight", {c.hidden, c.dense_hidden});
}

void bind_mtp(TensorBinder& binder, const std::string& prefix, Weights& weights) {
  const ModelConfig& c = binder.config();
  MtpWeights& w = weights.mtp;
  binder.begin_mtp();
  const auto vocabulary_matrix = [&](const std::string& name, const ConstTensor& of_trunk) {
    return binder.has(name) ? binder.matrix(name, {c.vocabulary, c.hidden}) : of_trunk;
  };
  w.fc = binder.matrix(prefix + "fc.weight", {c.hidden, 2 * c.hidden});
  w.embedding_norm = binder.small(prefix + "pre_fc_norm_embedding.weight", {c.hidden});
  w.hidden_norm = binder.small(prefix + "pre_fc_norm_hidden.weight", {c.hidden});
  w.norm = binder.small(prefix + "norm.weight", {c.hidden});
  w.embedding = vocabulary_matrix(prefix + "embed_tokens.weight", weights.embedding);
  w.head = vocabulary_matrix(prefix + "shared_head.head.weight", weights.head);
  const std::string layer = prefix + "layers.0.";
  w.layer.input_norm = binder.small(layer + "input_layernorm.weight", {c.hidden});
  w.layer.post_norm = binder.small(layer + "post_attention_layernorm.weight", {c.hidden});
  bind_attention(binder, layer + "self_attn.", w.layer.attention);
  if (c.mtp_sparse) {
    bind_moe(binder, layer + "mlp.", w.layer.moe);
  } else {
    bind_dense(binder, layer + "mlp.", w.layer.dense);
  }
}

}  // namespace

std::string mtp_prefix(const io::TensorSource& source) {
  for (const char* prefix : {"mtp.", "model.mtp.", "model.language_model.mtp.", "language_model.mtp."}) {
    if (has_prefix(source, prefix)) return prefix;
  }
  return {};
}

std::string hugging_face_prefix(const io::TensorSource& source) {
  const std::string nested = "model.language_model.";
  return source.has(nested + "embed_tokens.weight") ? nested : "model.";
}

void bind_hugging_face(TensorBinder& binder, const io::TensorSource& source, Weights& weights) {
  const ModelConfig& c = binder.config();
  const std::string prefix = hugging_face_prefix(source);
  weights.embedding = binder.matrix(prefix + "embed_tokens.weight", {c.vocabulary, c.hidden});
  weights.norm = binder.small(prefix + "norm.weight", {c.hidden});
  weights.head = c.tied_head ? weights.embedding : binder.matrix("lm_head.weight", {c.vocabulary, c.hidden});
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    LayerWeights& w = weights.layers[i];
    binder.begin_layer(i);
    const std::string layer = prefix + "layers." + std::to_string(i) + ".";
    w.input_norm = binder.small(layer + "input_layernorm.weight", {c.hidden});
    w.post_norm = binder.small(layer + "post_attention_layernorm.weight", {c.hidden});
    if (c.layers[i] == LayerKind::kGatedDelta) {
      bind_gated_delta(binder, layer + "linear_attn.", w.gated_delta);
    } else {
      bind_attention(binder, layer + "self_attn.", w.attention);
    }
    if (c.sparse[i]) {
      bind_moe(binder, layer + "mlp.", w.moe);
    } else {
      bind_dense(binder, layer + "mlp.", w.dense);
    }
  }
  if (c.has_mtp) bind_mtp(binder, mtp_prefix(source), weights);
}

}  // namespace thalweg::checkpoint
