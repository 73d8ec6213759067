#include "model/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/float16.h"
#include "io/gguf_writer.h"
#include "io/safetensors.h"
#include "text/byte_letters.h"
#include "text/tokenizer.h"
#include "thalweg/quant.h"

namespace thalweg::model {
namespace {

double uniform(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  std::uint64_t z = state;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
  z = (z ^ z >> 27) * 0x94D049BB133111EBU;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
}

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

ConstTensor view(const void* data, DType dtype, const std::vector<std::int64_t>& shape) {
  ConstTensor tensor(data, dtype, {1}, kCpu);
  tensor.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape[i];
    tensor.strides[i] = stride;
    stride *= shape[i];
  }
  return tensor;
}

std::vector<std::byte> pack(const TinyTensor& tensor, DType dtype) {
  const std::int64_t columns = tensor.shape.back();
  const std::int64_t rows = product(tensor.shape) / columns;
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(dtype, rows * columns)));
  if (dtype == DType::kF32) {  // as they are: tests write NaN, which quantize refuses
    std::memcpy(bytes.data(), tensor.values.data(), bytes.size());
    return bytes;
  }
  QuantizeArgs args;
  args.values = ConstTensor(tensor.values.data(), DType::kF32, {rows, columns}, kCpu);
  args.blocks = Tensor(bytes.data(), dtype, {rows, columns}, kCpu);
  HostWorkspace scratch;
  run(args, scratch.reserve(workspace_size(args, Stream::cpu(1))), Stream::cpu(1));
  return bytes;
}

}  // namespace

std::vector<std::int32_t> random_tokens(std::size_t count, int vocabulary, std::uint64_t seed) {
  std::vector<std::int32_t> tokens;
  while (tokens.size() < count) tokens.push_back(static_cast<std::int32_t>(uniform(seed) * vocabulary));
  return tokens;
}

bool TinySpec::sparse(int layer) const {
  return experts > 0 && std::find(dense_layers.begin(), dense_layers.end(), layer) == dense_layers.end();
}

void TinyModel::add(const std::string& name, std::vector<std::int64_t> shape, double scale, double shift) {
  TinyTensor tensor;
  tensor.values.resize(static_cast<std::size_t>(product(shape)));
  // Values that BF16 holds, so that the same model can be written in several types. Variance 1 before the scale.
  for (float& value : tensor.values) {
    value = round_to_bf16(static_cast<float>(shift + scale * std::sqrt(12.0) * (uniform(random_) - 0.5)));
  }
  tensor.shape = std::move(shape);
  tensors_[name] = std::move(tensor);
}

TinyModel::TinyModel(const TinySpec& spec)
    : spec_(spec),
      prefix_(spec.architecture == "qwen3next" ? "model." : "model.language_model."),
      random_(spec.seed * 7919) {
  const TinySpec& s = spec_;
  const std::int64_t d = s.hidden;
  const std::int64_t keys = s.key_heads * s.key_dim;
  const std::int64_t inner = s.value_heads * s.value_dim;
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns, double gain = 1) {
    add(name, {rows, columns}, gain / std::sqrt(static_cast<double>(columns)));
  };
  add(prefix_ + "embed_tokens.weight", {s.vocabulary, d}, 1.0);
  if (!s.tied) matrix("lm_head.weight", s.vocabulary, d, 2);
  add(prefix_ + "norm.weight", {d}, 0.2);
  for (int i = 0; i < s.layers + (s.mtp ? 1 : 0); ++i) {
    const bool draft = i == s.layers;
    const std::string layer = draft ? "mtp.layers.0." : prefix_ + "layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {d}, 0.2);
    add(layer + "post_attention_layernorm.weight", {d}, 0.2);
    if (draft || s.full_attention(i)) {
      const std::string at = layer + "self_attn.";
      matrix(at + "q_proj.weight", 2 * s.heads * s.head_dim, d);
      matrix(at + "k_proj.weight", s.kv_heads * s.head_dim, d);
      matrix(at + "v_proj.weight", s.kv_heads * s.head_dim, d);
      matrix(at + "o_proj.weight", d, s.heads * s.head_dim);
      add(at + "q_norm.weight", {s.head_dim}, 0.2, 0.5);
      add(at + "k_norm.weight", {s.head_dim}, 0.2, 0.5);
    } else {
      const std::string at = layer + "linear_attn.";
      if (s.architecture == "qwen3next") {
        matrix(at + "in_proj_qkvz.weight", 2 * keys + 2 * inner, d);
        matrix(at + "in_proj_ba.weight", 2 * s.value_heads, d);
      } else {
        matrix(at + "in_proj_qkv.weight", 2 * keys + inner, d);
        matrix(at + "in_proj_z.weight", inner, d);
        matrix(at + "in_proj_b.weight", s.value_heads, d);
        matrix(at + "in_proj_a.weight", s.value_heads, d);
      }
      add(at + "conv1d.weight", {2 * keys + inner, 1, s.conv_width}, 0.4);
      add(at + "A_log", {s.value_heads}, 0.8, 0.5);
      add(at + "dt_bias", {s.value_heads}, 0.7, -2.0);
      add(at + "norm.weight", {s.value_dim}, 0.2, 1.0);
      matrix(at + "out_proj.weight", d, inner);
    }
    const std::string mlp = layer + "mlp.";
    if (!s.sparse(i)) {
      matrix(mlp + "gate_proj.weight", s.dense_hidden, d);
      matrix(mlp + "up_proj.weight", s.dense_hidden, d);
      matrix(mlp + "down_proj.weight", d, s.dense_hidden);
      continue;
    }
    matrix(mlp + "gate.weight", s.experts, d, 2);
    add(mlp + "experts.gate_up_proj", {s.experts, 2 * s.expert_hidden, d}, 1 / std::sqrt(static_cast<double>(d)));
    add(mlp + "experts.down_proj", {s.experts, d, s.expert_hidden},
        1 / std::sqrt(static_cast<double>(s.expert_hidden)));
    matrix(mlp + "shared_expert.gate_proj.weight", s.shared_hidden, d);
    matrix(mlp + "shared_expert.up_proj.weight", s.shared_hidden, d);
    matrix(mlp + "shared_expert.down_proj.weight", d, s.shared_hidden);
    matrix(mlp + "shared_expert_gate.weight", 1, d);
  }
  if (!s.mtp) return;
  matrix("mtp.fc.weight", d, 2 * d);
  for (const char* norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}) {
    add("mtp." + std::string(norm) + ".weight", {d}, 0.2);
  }
}

void TinyModel::make_predictable() {
  constexpr float kShare = 0.25F;  // of the layers' outputs
  for (auto& [name, tensor] : tensors_) {
    const bool output = name.find("o_proj") != std::string::npos || name.find("out_proj") != std::string::npos ||
                        name.find("down_proj") != std::string::npos;
    for (float& value : tensor.values) value *= output ? kShare : 1.0F;
  }
  // The embedding as it is, and nothing of the hidden state.
  const auto d = static_cast<std::size_t>(spec_.hidden);
  std::vector<float>& fc = tensors_.at("mtp.fc.weight").values;
  std::fill(fc.begin(), fc.end(), 0.0F);
  for (std::size_t i = 0; i < d; ++i) fc[i * 2 * d + i] = 1.0F;
  std::vector<float>& first = tensors_.at("mtp.pre_fc_norm_embedding.weight").values;
  std::fill(first.begin(), first.end(), 0.0F);
  tensors_.at("mtp.norm.weight") = at(prefix_ + "norm.weight");
}

std::string TinyModel::config_json() const {
  const TinySpec& s = spec_;
  const bool next = s.architecture == "qwen3next";
  nlohmann::json text = {{"hidden_size", s.hidden},
                         {"num_hidden_layers", s.layers},
                         {"vocab_size", s.vocabulary},
                         {"rms_norm_eps", 1e-6},
                         {"hidden_act", "silu"},
                         {"num_attention_heads", s.heads},
                         {"num_key_value_heads", s.kv_heads},
                         {"head_dim", s.head_dim},
                         {"linear_num_key_heads", s.key_heads},
                         {"linear_num_value_heads", s.value_heads},
                         {"linear_key_head_dim", s.key_dim},
                         {"linear_value_head_dim", s.value_dim},
                         {"linear_conv_kernel_dim", s.conv_width},
                         {"full_attention_interval", s.interval},
                         {"intermediate_size", s.dense_hidden},
                         {"max_position_embeddings", 4096},
                         {"eos_token_id", 0}};
  if (s.experts > 0) {
    text["num_experts"] = s.experts;
    text["num_experts_per_tok"] = s.experts_used;
    text["moe_intermediate_size"] = s.expert_hidden;
    text["shared_expert_intermediate_size"] = s.shared_hidden;
  }
  if (next) {
    text["model_type"] = "qwen3_next";
    text["tie_word_embeddings"] = s.tied;
    text["rope_theta"] = 1e7;
    text["partial_rotary_factor"] = 0.25;
    text["norm_topk_prob"] = s.renormalize;
    text["decoder_sparse_step"] = 1;
    text["mlp_only_layers"] = s.dense_layers;
    return text.dump(2);
  }
  text["rope_parameters"] = {{"rope_theta", 1e7}, {"partial_rotary_factor", 0.25}, {"rope_type", "default"}};
  const std::string type = s.architecture == "qwen35" ? "qwen3_5" : "qwen3_5_moe";
  text["model_type"] = type + "_text";
  if (s.mtp) text["mtp_num_hidden_layers"] = 1;
  return nlohmann::json{{"model_type", type}, {"tie_word_embeddings", s.tied}, {"text_config", text}}.dump(2);
}

void TinyModel::write_hugging_face(const std::string& folder, DType dtype) const {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << config_json();
  std::map<std::string, TinyTensor> out;
  for (const auto& [name, tensor] : tensors_) {
    const std::size_t fused = name.find("experts.gate_up_proj");
    const std::size_t down = name.find("experts.down_proj");
    if (!spec_.separate_experts || (fused == std::string::npos && down == std::string::npos)) {
      out[name] = tensor;
      continue;
    }
    const std::string stem = name.substr(0, std::min(fused, down)) + "experts.";
    const std::int64_t rows = down != std::string::npos ? spec_.hidden : spec_.expert_hidden;
    const std::int64_t columns = tensor.shape[2];
    const float* next = tensor.values.data();
    for (int e = 0; e < spec_.experts; ++e) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        if ((std::string_view(part) == "down_proj") != (down != std::string::npos)) continue;
        out[stem + std::to_string(e) + "." + part + ".weight"] = {{rows, columns}, {next, next + rows * columns}};
        next += rows * columns;
      }
    }
  }
  std::vector<std::pair<std::string, ConstTensor>> views;
  std::vector<std::vector<std::uint16_t>> halves;
  for (const auto& [name, tensor] : out) {
    if (dtype == DType::kF32) {
      views.emplace_back(name, view(tensor.values.data(), dtype, tensor.shape));
      continue;
    }
    halves.emplace_back();
    for (float value : tensor.values) halves.back().push_back(f32_to_bf16(value));
    views.emplace_back(name, view(halves.back().data(), DType::kBF16, tensor.shape));
  }
  io::write_safetensors(folder + "/model.safetensors", views);
}

namespace {

// Rows of `width` values each, taken in an order.
TinyTensor take_rows(const TinyTensor& from, std::int64_t width, const std::vector<std::int64_t>& order,
                     std::vector<std::int64_t> shape) {
  TinyTensor to;
  to.shape = std::move(shape);
  for (std::int64_t row : order) {
    const auto begin = from.values.begin() + static_cast<std::ptrdiff_t>(row * width);
    to.values.insert(to.values.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
  }
  return to;
}

void add_tokenizer(io::GgufMetadata& meta) {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types(256, static_cast<std::int32_t>(text::TokenType::kNormal));
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(text::letters_of_bytes(std::string(1, static_cast<char>(byte))));
  tokens.emplace_back("<|im_end|>");
  types.push_back(static_cast<std::int32_t>(text::TokenType::kControl));
  meta.set("tokenizer.ggml.model", std::string("gpt2"));
  meta.set("tokenizer.ggml.pre", std::string("qwen35"));
  meta.set("tokenizer.ggml.tokens", io::GgufArray{tokens});
  meta.set("tokenizer.ggml.token_type", io::GgufArray{types});
  meta.set("tokenizer.ggml.merges", io::GgufArray{std::vector<std::string>{}});
  meta.set("tokenizer.ggml.eos_token_id", std::uint32_t{256});
}

void append_range(std::vector<std::int64_t>& order, std::int64_t begin, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) order.push_back(begin + i);
}

io::GgufMetadata metadata_of(const TinySpec& s) {
  const std::string& a = s.architecture;
  io::GgufMetadata meta;
  const auto integer = [&](const std::string& key, int value) {
    meta.set(a + "." + key, static_cast<std::uint32_t>(value));
  };
  meta.set("general.architecture", a);
  integer("block_count", s.layers + (s.mtp ? 1 : 0));
  if (s.mtp) integer("nextn_predict_layers", 1);
  integer("context_length", 4096);
  integer("embedding_length", s.hidden);
  integer("attention.head_count", s.heads);
  integer("attention.head_count_kv", s.kv_heads);
  integer("attention.key_length", s.head_dim);
  integer("attention.value_length", s.head_dim);
  meta.set(a + ".attention.layer_norm_rms_epsilon", 1e-6F);
  integer("ssm.conv_kernel", s.conv_width);
  integer("ssm.inner_size", s.value_heads * s.value_dim);
  integer("ssm.state_size", s.key_dim);
  integer("ssm.time_step_rank", s.value_heads);
  integer("ssm.group_count", s.key_heads);
  integer("rope.dimension_count", s.head_dim / 4);
  meta.set(a + ".rope.freq_base", 1e7F);
  integer("full_attention_interval", s.interval);
  integer("feed_forward_length", s.dense_hidden);
  if (s.experts > 0) {
    integer("expert_count", s.experts);
    integer("expert_used_count", s.experts_used);
    integer("expert_feed_forward_length", s.expert_hidden);
    integer("expert_shared_feed_forward_length", s.shared_hidden);
    meta.set(a + ".expert_weights_norm", s.renormalize);
  }
  return meta;
}

// Norms of a GGUF file hold the 1 that Hugging Face files leave out.
TinyTensor plus_one(TinyTensor tensor) {
  for (float& value : tensor.values) value += 1.0F;
  return tensor;
}

// A model's tensors under GGUF's names and in its layouts.
class GgufTensors {
 public:
  GgufTensors(const TinySpec& spec, const std::string& prefix, const std::map<std::string, TinyTensor>& tensors)
      : s_(spec), tensors_(tensors) {
    // Grouped to tiled: index t holds head (t % HK) * r + t / HK.
    for (std::int64_t t = 0; t < s_.value_heads; ++t) {
      heads_.push_back(next_ ? t : t % s_.key_heads * ratio_ + t / s_.key_heads);
    }
    out_["token_embd.weight"] = at(prefix + "embed_tokens.weight");
    out_["output_norm.weight"] = plus_one(at(prefix + "norm.weight"));
    if (!s_.tied) out_["output.weight"] = at("lm_head.weight");
    for (int i = 0; i < s_.layers; ++i) {
      const std::string from = prefix + "layers." + std::to_string(i) + ".";
      add_layer(i, s_.full_attention(i), from, "blk." + std::to_string(i) + ".");
    }
    if (s_.mtp) add_mtp_layer("blk." + std::to_string(s_.layers) + ".");
  }

  const std::map<std::string, TinyTensor>& all() const { return out_; }

 private:
  const TinyTensor& at(const std::string& name) const { return tensors_.at(name); }

  // Rows of the value heads in their order, from `begin`.
  void append_values(std::vector<std::int64_t>& order, std::int64_t begin) const {
    for (std::int64_t h : heads_) append_range(order, begin + h * s_.value_dim, s_.value_dim);
  }

  void add_layer(int i, bool attention, const std::string& from, const std::string& to) {
    out_[to + "attn_norm.weight"] = plus_one(at(from + "input_layernorm.weight"));
    out_[to + "post_attention_norm.weight"] = plus_one(at(from + "post_attention_layernorm.weight"));
    if (attention) {
      add_attention(from + "self_attn.", to);
    } else {
      add_gated_delta(from + "linear_attn.", to);
    }
    if (s_.sparse(i)) {
      add_experts(from + "mlp.", to);
    } else {
      for (const char* name : {"gate", "up", "down"}) {
        out_[to + "ffn_" + name + ".weight"] = at(from + "mlp." + name + "_proj.weight");
      }
    }
  }

  void add_mtp_layer(const std::string& to) {
    add_layer(s_.layers, true, "mtp.layers.0.", to);
    out_[to + "nextn.eh_proj.weight"] = at("mtp.fc.weight");
    out_[to + "nextn.enorm.weight"] = plus_one(at("mtp.pre_fc_norm_embedding.weight"));
    out_[to + "nextn.hnorm.weight"] = plus_one(at("mtp.pre_fc_norm_hidden.weight"));
    out_[to + "nextn.shared_head_norm.weight"] = plus_one(at("mtp.norm.weight"));
  }

  void add_attention(const std::string& from, const std::string& to) {
    out_[to + "attn_q.weight"] = at(from + "q_proj.weight");
    out_[to + "attn_k.weight"] = at(from + "k_proj.weight");
    out_[to + "attn_v.weight"] = at(from + "v_proj.weight");
    out_[to + "attn_output.weight"] = at(from + "o_proj.weight");
    out_[to + "attn_q_norm.weight"] = plus_one(at(from + "q_norm.weight"));
    out_[to + "attn_k_norm.weight"] = plus_one(at(from + "k_norm.weight"));
  }

  void add_gated_delta(const std::string& from, const std::string& to) {
    if (next_) {
      add_interleaved_projections(from, to);
    } else {
      add_projections(from, to);
    }
    std::vector<std::int64_t> order;
    append_range(order, 0, 2 * keys_);
    append_values(order, 2 * keys_);
    out_[to + "ssm_conv1d.weight"] =
        take_rows(at(from + "conv1d.weight"), s_.conv_width, order, {2 * keys_ + inner_, s_.conv_width});
    TinyTensor decay = take_rows(at(from + "A_log"), 1, heads_, {s_.value_heads});
    for (float& value : decay.values) value = -std::exp(value);
    out_[to + "ssm_a"] = decay;
    out_[to + "ssm_dt.bias"] = take_rows(at(from + "dt_bias"), 1, heads_, {s_.value_heads});
    out_[to + "ssm_norm.weight"] = at(from + "norm.weight");
    std::vector<std::int64_t> columns;
    for (std::int64_t row = 0; row < d_; ++row) append_values(columns, row * inner_);
    out_[to + "ssm_out.weight"] = take_rows(at(from + "out_proj.weight"), 1, columns, {d_, inner_});
  }

  void add_projections(const std::string& from, const std::string& to) {
    std::vector<std::int64_t> order;
    append_range(order, 0, 2 * keys_);
    append_values(order, 2 * keys_);
    std::vector<std::int64_t> values;
    append_values(values, 0);
    out_[to + "attn_qkv.weight"] = take_rows(at(from + "in_proj_qkv.weight"), d_, order, {2 * keys_ + inner_, d_});
    out_[to + "attn_gate.weight"] = take_rows(at(from + "in_proj_z.weight"), d_, values, {inner_, d_});
    out_[to + "ssm_beta.weight"] = take_rows(at(from + "in_proj_b.weight"), d_, heads_, {s_.value_heads, d_});
    out_[to + "ssm_alpha.weight"] = take_rows(at(from + "in_proj_a.weight"), d_, heads_, {s_.value_heads, d_});
  }

  // Qwen3-Next: q, k, v and z of each key head in turn.
  void add_interleaved_projections(const std::string& from, const std::string& to) {
    const TinyTensor& qkvz = at(from + "in_proj_qkvz.weight");
    const std::int64_t values = ratio_ * s_.value_dim;
    const std::int64_t block = 2 * s_.key_dim + 2 * values;
    const auto rows = [&](std::vector<std::int64_t>& order, std::int64_t start, std::int64_t count) {
      for (std::int64_t h = 0; h < s_.key_heads; ++h) append_range(order, h * block + start, count);
    };
    if (s_.interleaved_in) {
      out_[to + "ssm_in.weight"] = qkvz;
    } else {
      std::vector<std::int64_t> qkv;
      rows(qkv, 0, s_.key_dim);
      rows(qkv, s_.key_dim, s_.key_dim);
      rows(qkv, 2 * s_.key_dim, values);
      std::vector<std::int64_t> z;
      rows(z, 2 * s_.key_dim + values, values);
      out_[to + "attn_qkv.weight"] = take_rows(qkvz, d_, qkv, {2 * keys_ + inner_, d_});
      out_[to + "attn_gate.weight"] = take_rows(qkvz, d_, z, {inner_, d_});
    }
    out_[to + "ssm_ba.weight"] = at(from + "in_proj_ba.weight");
  }

  void add_experts(const std::string& from, const std::string& to) {
    out_[to + "ffn_gate_inp.weight"] = at(from + "gate.weight");
    const TinyTensor& fused = at(from + "experts.gate_up_proj");
    for (int half = 0; half < 2; ++half) {
      std::vector<std::int64_t> order;
      for (std::int64_t e = 0; e < s_.experts; ++e) {
        append_range(order, (2 * e + half) * s_.expert_hidden, s_.expert_hidden);
      }
      out_[to + (half == 0 ? "ffn_gate_exps.weight" : "ffn_up_exps.weight")] =
          take_rows(fused, d_, order, {s_.experts, s_.expert_hidden, d_});
    }
    out_[to + "ffn_down_exps.weight"] = at(from + "experts.down_proj");
    for (const char* name : {"gate", "up", "down"}) {
      out_[to + "ffn_" + name + "_shexp.weight"] = at(from + "shared_expert." + name + "_proj.weight");
    }
    out_[to + "ffn_gate_inp_shexp.weight"] = at(from + "shared_expert_gate.weight");
    out_[to + "ffn_gate_inp_shexp.weight"].shape = {d_};
  }

  const TinySpec& s_;
  const std::map<std::string, TinyTensor>& tensors_;
  const bool next_ = s_.architecture == "qwen3next";
  const std::int64_t d_ = s_.hidden;
  const std::int64_t ratio_ = s_.value_heads / s_.key_heads;
  const std::int64_t keys_ = s_.key_heads * s_.key_dim;
  const std::int64_t inner_ = s_.value_heads * s_.value_dim;
  std::vector<std::int64_t> heads_;
  std::map<std::string, TinyTensor> out_;
};

}  // namespace

void TinyModel::write_gguf(const std::string& path, DType dtype) const {
  io::GgufMetadata meta = metadata_of(spec_);
  if (with_tokenizer) add_tokenizer(meta);
  if (!with_tokenizer) meta.set("tokenizer.ggml.eos_token_id", std::uint32_t{0});
  if (!with_tokenizer && !tokenizer_model.empty()) meta.set("tokenizer.ggml.model", tokenizer_model);

  const auto type_of = [&](const std::string& name, const TinyTensor& tensor) {
    // As quantize leaves them; CUDA's routers are not packed.
    const bool plain = tensor.shape.size() < 2 || name.find("conv1d") != std::string::npos ||
                       name.find("ffn_gate_inp") != std::string::npos ||
                       tensor.shape.back() % dtype_info(dtype).block_size != 0;
    return plain ? DType::kF32 : dtype;
  };
  const GgufTensors tensors(spec_, prefix_, tensors_);
  io::GgufWriter writer(path, meta);
  for (const auto& [name, tensor] : tensors.all()) writer.declare(name, type_of(name, tensor), tensor.shape);
  for (const auto& [name, tensor] : tensors.all()) {
    const std::vector<std::byte> bytes = pack(tensor, type_of(name, tensor));
    writer.write(name, bytes.data(), bytes.size());
  }
  writer.finish();
}

}  // namespace thalweg::model
