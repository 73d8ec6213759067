#include "convert/convert.h"
#include "thalweg/error.h"

namespace thalweg::convert {
namespace {

std::uint32_t u32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

// The interval of the attention layers; 0 if they are not evenly spaced.
int interval_of(const std::vector<LayerKind>& layers) {
  std::size_t interval = 0;
  while (interval < layers.size() && layers[interval] != LayerKind::kAttention) ++interval;
  ++interval;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if ((layers[i] == LayerKind::kAttention) != ((i + 1) % interval == 0)) return 0;
  }
  return static_cast<int>(interval);
}

// The keys that llama.cpp's converter writes. attention_factor also holds what it leaves out, the ratio that two
// mscales give.
void add_rope_scaling(io::GgufMetadata& metadata, const ModelConfig& config) {
  using Type = checkpoint::RopeScaling::Type;
  const checkpoint::RopeScaling& scaling = config.rope_scaling;
  if (scaling.type == Type::kNone) return;
  const std::string prefix = config.architecture + ".rope.scaling.";
  const auto real = [&](const char* key, double value) { metadata.add(prefix + key, static_cast<float>(value)); };
  metadata.add(prefix + "type", std::string(checkpoint::rope_scaling_name(scaling.type)));
  real("factor", scaling.factor);
  if (scaling.type == Type::kLinear) return;
  if (!scaling.truncate) {
    throw Error(config.path, "rope_parameters.truncate", "true, because GGUF has no key for it", "false");
  }
  metadata.add(prefix + "original_context_length", u32(scaling.original_context));
  if (scaling.attention_factor) real("yarn_attn_factor", *scaling.attention_factor);
  if (scaling.beta_fast) real("yarn_beta_fast", *scaling.beta_fast);
  if (scaling.beta_slow) real("yarn_beta_slow", *scaling.beta_slow);
}

}  // namespace

std::vector<std::int64_t> default_rope_sections(int rotary_dim) {
  const int half = rotary_dim / 2;
  const int first = (half + 2) / 3;
  const int second = (half - first + 1) / 2;
  return {first, second, half - first - second, 0};
}

io::GgufMetadata gguf_metadata(const ModelConfig& config, const std::vector<std::int64_t>& rope_sections,
                               std::int64_t file_type) {
  io::GgufMetadata metadata;
  const std::string& arch = config.architecture;
  const auto text = [&](const std::string& key, const std::string& value) { metadata.add(key, value); };
  const auto number = [&](const std::string& key, std::int64_t value) { metadata.add(arch + "." + key, u32(value)); };
  const auto real = [&](const std::string& key, float value) { metadata.add(arch + "." + key, value); };

  text("general.architecture", arch);
  text("general.type", "model");
  if (!config.name.empty()) text("general.name", config.name);
  metadata.add("general.file_type", u32(file_type));
  metadata.add("general.quantization_version", std::uint32_t{2});
  number("block_count", static_cast<std::int64_t>(config.layers.size()) + (config.has_mtp ? 1 : 0));
  if (config.has_mtp) number("nextn_predict_layers", 1);
  if (config.context > 0) number("context_length", config.context);
  number("embedding_length", config.hidden);
  if (config.dense_hidden > 0) number("feed_forward_length", config.dense_hidden);
  number("attention.head_count", config.heads);
  number("attention.head_count_kv", config.kv_heads);
  number("attention.key_length", config.head_dim);
  number("attention.value_length", config.head_dim);
  real("attention.layer_norm_rms_epsilon", config.norm_eps);
  number("rope.dimension_count", config.rotary_dim);
  real("rope.freq_base", config.rope_theta);
  add_rope_scaling(metadata, config);
  if (arch != "qwen3next") {
    std::vector<std::int32_t> sections;
    for (std::int64_t section : rope_sections) sections.push_back(static_cast<std::int32_t>(section));
    metadata.add(arch + ".rope.dimension_sections", io::GgufArray{sections});
  }
  number("ssm.conv_kernel", config.conv_width);
  number("ssm.state_size", config.key_dim);
  number("ssm.group_count", config.key_heads);
  number("ssm.time_step_rank", config.value_heads);
  number("ssm.inner_size", config.value_channels());
  if (const int interval = interval_of(config.layers); interval > 0) {
    number("full_attention_interval", interval);
  } else {
    std::vector<bool> recurrent;
    for (LayerKind kind : config.layers) recurrent.push_back(kind == LayerKind::kGatedDelta);
    if (config.has_mtp) recurrent.push_back(false);
    metadata.add(arch + ".attention.recurrent_layers", io::GgufArray{recurrent});
  }
  if (config.experts > 0) {
    number("expert_count", config.experts);
    number("expert_used_count", config.experts_used);
    number("expert_feed_forward_length", config.expert_hidden);
    if (config.shared_hidden > 0) number("expert_shared_feed_forward_length", config.shared_hidden);
    if (!config.renormalize) metadata.add(arch + ".expert_weights_norm", false);
  }
  return metadata;
}

}  // namespace thalweg::convert
