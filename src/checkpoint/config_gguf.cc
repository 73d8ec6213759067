#include "checkpoint/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "checkpoint/config_checks.h"
#include "io/printable.h"

namespace thalweg::checkpoint {
namespace {

// Keys of one architecture, with their prefix.
class Keys {
 public:
  Keys(const io::GgufMetadata& metadata, std::string prefix, std::string path)
      : metadata_(metadata), prefix_(std::move(prefix)), path_(std::move(path)) {}

  std::string name(std::string_view key) const { return prefix_ + "." + std::string(key); }
  bool has(std::string_view key) const { return metadata_.has(name(key)); }
  bool is_array(std::string_view key) const { return metadata_.is_array(name(key)); }

  int size(std::string_view key) const { return checked_size(metadata_.integer(name(key)), 1, path_, name(key)); }
  int size(std::string_view key, int fallback) const {
    return checked_size(metadata_.integer(name(key), fallback), 0, path_, name(key));
  }

  // One number, or one per layer, where 0 means that the layer has none.
  int size_of_layers(std::string_view key) const {
    if (!is_array(key)) return size(key);
    std::int64_t value = 0;
    for (std::int64_t of_layer : metadata_.integers(name(key))) {
      if (of_layer == 0) continue;
      if (value != 0 && of_layer != value) fail(key, "the same number in every layer", std::to_string(of_layer));
      value = of_layer;
    }
    return checked_size(value, 1, path_, name(key));
  }

  double number(std::string_view key) const { return metadata_.number(name(key)); }
  double number(std::string_view key, double fallback) const { return metadata_.number(name(key), fallback); }

  std::vector<bool> flags(std::string_view key) const {
    const io::GgufValue* value = metadata_.find(name(key));
    const auto* array = value != nullptr ? std::get_if<io::GgufArray>(value) : nullptr;
    if (array != nullptr && array->type() == io::GgufType::kBool) return metadata_.booleans(name(key));
    std::vector<bool> flags;
    for (std::int64_t flag : metadata_.integers(name(key))) flags.push_back(flag != 0);
    return flags;
  }

  [[noreturn]] void fail(std::string_view key, std::string_view expected, std::string_view given) const {
    throw Error(path_, name(key), expected, given);
  }

 private:
  const io::GgufMetadata& metadata_;
  std::string prefix_;
  std::string path_;
};

void read_layers(ModelConfig& config, const Keys& keys) {
  const int blocks = checked_layers(keys.size("block_count"), config.path, keys.name("block_count"));
  config.mtp_layers = keys.size("nextn_predict_layers", 0);
  if (config.mtp_layers >= blocks) {
    keys.fail("nextn_predict_layers", "less than block_count = " + std::to_string(blocks),
              std::to_string(config.mtp_layers));
  }
  const auto trunk = static_cast<std::size_t>(blocks - config.mtp_layers);
  if (keys.has("attention.recurrent_layers")) {
    const std::vector<bool> recurrent = keys.flags("attention.recurrent_layers");
    if (recurrent.size() != trunk && recurrent.size() != static_cast<std::size_t>(blocks)) {
      keys.fail("attention.recurrent_layers", "a value for each of " + std::to_string(blocks) + " layers",
                std::to_string(recurrent.size()));
    }
    for (std::size_t i = 0; i < trunk; ++i) {
      config.layers.push_back(recurrent[i] ? LayerKind::kGatedDelta : LayerKind::kAttention);
    }
    return;
  }
  const int interval = keys.has("full_attention_interval") ? keys.size("full_attention_interval") : 4;
  config.layers = layers_of_interval(trunk, interval);
}

// As llama.cpp reads and writes them. A factor without a type is linear, and 0 is what writers put for "none".
RopeScaling read_rope_scaling(const ModelConfig& config, const Keys& keys, const io::GgufMetadata& metadata) {
  RopeScaling scaling;
  const std::string type = metadata.string(keys.name("rope.scaling.type"), "linear");
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn") keys.fail("rope.scaling.type", "none, linear or yarn", io::printable(type));
  const auto positive = [&](std::string_view key) {
    return checked_positive(keys.number(key), config.path, keys.name(key));
  };
  const std::string_view factor = keys.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  const bool scaled = keys.number(factor, 0.0) != 0.0;
  if (scaled) scaling.factor = positive(factor);
  if (type == "linear") {
    if (scaled && scaling.factor != 1.0) scaling.type = RopeScaling::Type::kLinear;
    return scaling;
  }
  scaling.type = RopeScaling::Type::kYarn;
  scaling.original_context = keys.has("rope.scaling.original_context_length")
                                 ? keys.size("rope.scaling.original_context_length")
                                 : keys.size("context_length");
  if (keys.has("rope.scaling.yarn_beta_fast")) scaling.beta_fast = positive("rope.scaling.yarn_beta_fast");
  if (keys.has("rope.scaling.yarn_beta_slow")) scaling.beta_slow = positive("rope.scaling.yarn_beta_slow");
  // Negative is llama.cpp's "not set". Other shares of the interpolation exist in no model of these architectures.
  const double extrapolation = keys.number("rope.scaling.yarn_ext_factor", 1.0);
  if (extrapolation >= 0.0 && extrapolation != 1.0) {
    keys.fail("rope.scaling.yarn_ext_factor", "1", std::to_string(extrapolation));
  }
  // The converter writes transformers' attention_factor as yarn_attn_factor; attn_factor multiplies whatever there is.
  double attention = yarn_magnitude(scaling.factor, 1.0);
  if (keys.has("rope.scaling.yarn_attn_factor")) {
    attention = positive("rope.scaling.yarn_attn_factor");
  } else if (keys.has("rope.scaling.yarn_log_multiplier")) {
    attention /= yarn_magnitude(scaling.factor, keys.number("rope.scaling.yarn_log_multiplier"));
  }
  if (keys.has("rope.scaling.attn_factor")) attention *= positive("rope.scaling.attn_factor");
  scaling.attention_factor = checked_positive(attention, config.path, keys.name("rope.scaling.yarn_log_multiplier"));
  return scaling;
}

void read_end_tokens(ModelConfig& config, const io::GgufMetadata& metadata) {
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (metadata.has(key)) add_end_token(config, metadata.integer(key), key);
  }
}

}  // namespace

ModelConfig read_config(const io::GgufMetadata& metadata, const io::TensorSource& tensors, const std::string& path) {
  ModelConfig config;
  config.path = path;
  config.naming = Naming::kGguf;
  config.architecture = metadata.string("general.architecture");
  constexpr std::array<std::string_view, 3> kArchitectures = {"qwen3next", "qwen35", "qwen35moe"};
  if (std::find(kArchitectures.begin(), kArchitectures.end(), config.architecture) == kArchitectures.end()) {
    throw Error(path, "general.architecture", "qwen3next, qwen35 or qwen35moe", io::printable(config.architecture));
  }
  config.name = metadata.string("general.name", "");
  const Keys keys(metadata, config.architecture, path);

  read_layers(config, keys);
  config.hidden = keys.size("embedding_length");
  config.context = keys.size("context_length", 0);
  config.norm_eps = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon"));
  config.vocabulary = first_dim(tensors, "token_embd.weight");
  config.tied_head = !tensors.has("output.weight");

  config.heads = keys.size_of_layers("attention.head_count");
  config.kv_heads = keys.size_of_layers("attention.head_count_kv");
  config.head_dim = keys.size("attention.key_length");
  if (keys.size("attention.value_length") != config.head_dim) {
    keys.fail("attention.value_length", "attention.key_length, " + std::to_string(config.head_dim),
              std::to_string(keys.size("attention.value_length")));
  }
  config.rotary_dim = keys.size("rope.dimension_count");
  config.rope_theta = static_cast<float>(keys.number("rope.freq_base"));
  config.rope_scaling = read_rope_scaling(config, keys, metadata);

  config.key_heads = keys.size("ssm.group_count");
  config.value_heads = keys.size("ssm.time_step_rank");
  config.key_dim = keys.size("ssm.state_size");
  const int inner = keys.size("ssm.inner_size");
  if (inner % config.value_heads != 0) {
    keys.fail("ssm.inner_size", "a multiple of ssm.time_step_rank = " + std::to_string(config.value_heads),
              std::to_string(inner));
  }
  config.value_dim = inner / config.value_heads;
  config.conv_width = keys.size("ssm.conv_kernel");
  // Converters reorder the value heads of Qwen3.5, not those of Qwen3-Next. Ollama's converter writes a key for it.
  const bool tiled = metadata.boolean(keys.name("ssm.v_head_reordered"), config.architecture != "qwen3next");
  config.head_map = tiled ? HeadMap::kTiled : HeadMap::kGrouped;

  config.experts = keys.size("expert_count", 0);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    config.sparse.push_back(config.experts > 0 && !tensors.has("blk." + std::to_string(i) + ".ffn_gate.weight"));
  }
  // A file may keep the number of layers that it left out.
  const std::string mtp = "blk." + std::to_string(config.layers.size()) + ".";
  config.has_mtp = config.mtp_layers == 1 && has_prefix(tensors, mtp);
  config.mtp_sparse = config.has_mtp && config.experts > 0 && !tensors.has(mtp + "ffn_gate.weight");
  if (any_sparse(config)) {
    config.experts_used = keys.size("expert_used_count");
    config.expert_hidden = keys.size_of_layers("expert_feed_forward_length");
    config.shared_hidden = keys.size("expert_shared_feed_forward_length", 0);
    const bool renormalize = metadata.boolean(keys.name("norm_top_k_prob"), true);  // Ollama's name
    config.renormalize = metadata.boolean(keys.name("expert_weights_norm"), renormalize);
    // 0 is what writers put for "none".
    const double scale = keys.number("expert_weights_scale", 1.0);
    if (scale != 0.0 && scale != 1.0) keys.fail("expert_weights_scale", "1", std::to_string(scale));
  }
  if (any_dense(config)) config.dense_hidden = keys.size_of_layers("feed_forward_length");
  read_end_tokens(config, metadata);
  const ConfigKeys names = {.heads = keys.name("attention.head_count"),
                            .head_dim = keys.name("attention.key_length"),
                            .rotary_dim = keys.name("rope.dimension_count"),
                            .rope_theta = keys.name("rope.freq_base"),
                            .rope_factor = keys.name("rope.scaling.factor"),
                            .norm_eps = keys.name("attention.layer_norm_rms_epsilon"),
                            .value_heads = keys.name("ssm.time_step_rank"),
                            .key_dim = keys.name("ssm.state_size"),
                            .value_dim = keys.name("ssm.inner_size"),
                            .conv_width = keys.name("ssm.conv_kernel"),
                            .experts_used = keys.name("expert_used_count")};
  check_config(config, names);
  derive_rope(config, names);
  return config;
}

}  // namespace thalweg::checkpoint
