#include <algorithm>
#include <optional>

#include "checkpoint/config.h"
#include "checkpoint/config_checks.h"
#include "io/printable.h"

namespace thalweg::checkpoint {
namespace {

std::string architecture_of(const io::JsonObject& config) {
  const std::string type = config.string("model_type");
  if (type == "qwen3_next") return "qwen3next";
  if (type == "qwen3_5" || type == "qwen3_5_text") return "qwen35";
  if (type == "qwen3_5_moe" || type == "qwen3_5_moe_text") return "qwen35moe";
  throw Error(config.path(), "model_type", "qwen3_next, qwen3_5 or qwen3_5_moe", io::printable(type));
}

// Reads the text model's keys: those of text_config if there is one, else the top level.
class Reader {
 public:
  explicit Reader(const io::JsonObject& top) : top_(top), nested_(top.has("text_config")) {
    if (nested_) text_.emplace(top.object("text_config"));
  }

  const io::JsonObject& text() const { return nested_ ? *text_ : top_; }
  const io::JsonObject& top() const { return top_; }
  std::string name(std::string_view key) const { return (nested_ ? "text_config." : "") + std::string(key); }
  bool nested() const { return nested_; }

  int size(std::string_view key) const { return checked_size(text().integer(key), 1, top_.path(), name(key)); }
  int size(std::string_view key, int fallback) const {
    return checked_size(text().integer(key, fallback), 0, top_.path(), name(key));
  }

  [[noreturn]] void fail(std::string_view key, std::string_view expected, std::string_view given) const {
    throw Error(top_.path(), name(key), expected, given);
  }

  // Refuses a setting that the decoder does not implement.
  void require_flag(std::string_view key, bool value) const {
    if (text().boolean(key, value) != value) fail(key, value ? "true" : "false", value ? "false" : "true");
  }

 private:
  const io::JsonObject& top_;
  bool nested_;
  std::optional<io::JsonObject> text_;
};

void read_layers(ModelConfig& config, const Reader& reader) {
  const int layers = checked_layers(reader.size("num_hidden_layers"), config.path, reader.name("num_hidden_layers"));
  config.mtp_layers = reader.size("mtp_num_hidden_layers", 0);
  const auto count = static_cast<std::size_t>(layers);
  if (!reader.text().has("layer_types")) {
    const int interval = reader.text().has("full_attention_interval") ? reader.size("full_attention_interval") : 4;
    config.layers = layers_of_interval(count, interval);
    return;
  }
  const std::vector<std::string> types = reader.text().strings("layer_types");
  if (types.size() != count) {
    reader.fail("layer_types", "a type for each of " + std::to_string(count) + " layers", std::to_string(types.size()));
  }
  for (const std::string& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      reader.fail("layer_types", "linear_attention or full_attention", io::printable(type));
    }
    config.layers.push_back(type == "full_attention" ? LayerKind::kAttention : LayerKind::kGatedDelta);
  }
}

void read_rope(ModelConfig& config, const Reader& reader) {
  // New configurations nest these keys, old ones do not.
  const bool together = reader.text().is_object("rope_parameters");
  const io::JsonObject rope = together ? reader.text().object("rope_parameters") : reader.text();
  const auto number = [&](std::string_view key) {
    return together && !rope.has(key) ? reader.text().number(key) : rope.number(key);
  };
  config.rope_theta = static_cast<float>(number("rope_theta"));
  const double fraction = number("partial_rotary_factor");
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    reader.fail("partial_rotary_factor", "a number above 0, at most 1", std::to_string(fraction));
  }
  config.rotary_dim = static_cast<int>(config.head_dim * fraction);
  const std::string type = together ? rope.string("rope_type", "default") : "default";
  if (type != "default") reader.fail("rope_parameters.rope_type", "default", io::printable(type));
  if (reader.text().is_object("rope_scaling")) {
    const io::JsonObject scaling = reader.text().object("rope_scaling");
    const std::string scaled = scaling.string("rope_type", scaling.string("type", "default"));
    if (scaled != "default" && scaled != "mrope") {
      reader.fail("rope_scaling.rope_type", "default", io::printable(scaled));
    }
  }
}

void read_experts(ModelConfig& config, const Reader& reader) {
  const io::JsonObject& text = reader.text();
  config.experts = config.architecture == "qwen35" ? 0 : reader.size("num_experts", 0);
  // Keys of Qwen3-Next. Transformers reads neither for Qwen3.5, where every layer has experts.
  const bool mixed = config.architecture == "qwen3next";
  const int step = mixed && text.has("decoder_sparse_step") ? reader.size("decoder_sparse_step") : 1;
  std::vector<std::int64_t> dense;
  if (mixed && text.has("mlp_only_layers")) dense = text.integers("mlp_only_layers");
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const bool listed = std::find(dense.begin(), dense.end(), static_cast<std::int64_t>(i)) != dense.end();
    const bool stepped = (i + 1) % static_cast<std::size_t>(step) == 0;
    config.sparse.push_back(config.experts > 0 && !listed && stepped);
  }
  if (any_sparse(config)) {
    config.experts_used = reader.size("num_experts_per_tok");
    config.expert_hidden = reader.size("moe_intermediate_size");
    config.shared_hidden = reader.size("shared_expert_intermediate_size", 0);
    config.renormalize = config.architecture == "qwen3next" ? text.boolean("norm_topk_prob", true) : true;
  }
  if (any_dense(config)) config.dense_hidden = reader.size("intermediate_size");
}

}  // namespace

void read_end_tokens(ModelConfig& config, const io::JsonObject& object, std::string_view key) {
  if (!object.has("eos_token_id")) return;
  if (object.is_array("eos_token_id")) {
    for (std::int64_t id : object.integers("eos_token_id")) add_end_token(config, id, key);
  } else {
    add_end_token(config, object.integer("eos_token_id"), key);
  }
}

ModelConfig read_config(const io::JsonObject& top, const io::TensorSource& tensors) {
  const Reader reader(top);
  const io::JsonObject& text = reader.text();
  ModelConfig config;
  config.path = top.path();
  config.naming = Naming::kHuggingFace;
  config.architecture = architecture_of(top);
  config.name = top.string("_name_or_path", "");

  read_layers(config, reader);
  config.hidden = reader.size("hidden_size");
  config.vocabulary = reader.size("vocab_size");
  config.context = reader.size("max_position_embeddings", 0);
  config.norm_eps = static_cast<float>(text.number("rms_norm_eps"));
  config.norm_plus_one = true;
  // Either level may have the key; without it, a head in the file means untied.
  const bool tied = text.boolean("tie_word_embeddings", top.boolean("tie_word_embeddings", false));
  config.tied_head = tied || (!tensors.has("lm_head.weight") && top.boolean("tie_word_embeddings", false));

  config.heads = reader.size("num_attention_heads");
  config.kv_heads = reader.size("num_key_value_heads");
  config.head_dim = reader.size("head_dim");
  read_rope(config, reader);
  if (text.string("hidden_act", "silu") != "silu") reader.fail("hidden_act", "silu", text.string("hidden_act"));
  reader.require_flag("attention_bias", false);
  reader.require_flag("attn_output_gate", true);

  config.key_heads = reader.size("linear_num_key_heads");
  config.value_heads = reader.size("linear_num_value_heads");
  config.key_dim = reader.size("linear_key_head_dim");
  config.value_dim = reader.size("linear_value_head_dim");
  config.conv_width = reader.size("linear_conv_kernel_dim");
  config.head_map = HeadMap::kGrouped;

  read_experts(config, reader);
  read_end_tokens(config, text, reader.name("eos_token_id"));
  if (reader.nested()) read_end_tokens(config, top, "eos_token_id");
  check_config(config, {.heads = reader.name("num_attention_heads"),
                        .head_dim = reader.name("head_dim"),
                        .rotary_dim = reader.name("partial_rotary_factor"),
                        .rope_theta = reader.name("rope_theta"),
                        .norm_eps = reader.name("rms_norm_eps"),
                        .value_heads = reader.name("linear_num_value_heads"),
                        .key_dim = reader.name("linear_key_head_dim"),
                        .value_dim = reader.name("linear_value_head_dim"),
                        .conv_width = reader.name("linear_conv_kernel_dim"),
                        .experts_used = reader.name("num_experts_per_tok")});
  return config;
}

}  // namespace thalweg::checkpoint
