#include <algorithm>
#include <optional>

#include "checkpoint/config.h"
#include "checkpoint/config_checks.h"
#include "checkpoint/weights.h"
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

// Configurations of Qwen3-Next have no number, those of Qwen3.5 keep it where the tensors were left out.
void read_mtp(ModelConfig& config, const Reader& reader, const io::TensorSource& tensors) {
  const std::string prefix = mtp_prefix(tensors);
  if (prefix.empty()) return;
  config.mtp_layers = reader.size("mtp_num_hidden_layers", reader.size("num_nextn_predict_layers", 1));
  config.has_mtp = config.mtp_layers == 1;
  config.mtp_sparse = config.has_mtp && tensors.has(prefix + "layers.0.mlp.gate.weight");
}

void read_layers(ModelConfig& config, const Reader& reader) {
  const int layers = checked_layers(reader.size("num_hidden_layers"), config.path, reader.name("num_hidden_layers"));
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

// The rotary embedding's keys. New configurations nest them in rope_parameters, old ones have rope_scaling for those of
// the scaling and the others beside it. Like transformers, of the two objects rope_scaling is read where both are.
class RopeReader {
 public:
  explicit RopeReader(const Reader& reader) : reader_(reader), path_(reader.top().path()) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (!reader.text().is_object(key) || reader.text().object(key).keys().empty()) continue;
      object_.emplace(reader.text().object(key));
      prefix_ = key + std::string(".");
      break;
    }
  }

  // Of the object or, without it there, of the text model.
  double number(std::string_view key) const {
    return in_object(key) || !reader_.text().has(key) ? object().number(key) : reader_.text().number(key);
  }

  RopeScaling scaling(const ModelConfig& config) const {
    RopeScaling scaling;
    const std::string type = object_ ? object_->string("rope_type", object_->string("type", "default")) : "default";
    // mrope: the sections of the vision models, which are equal for text.
    if (type == "default" || type == "mrope") return scaling;
    if (type != "linear" && type != "yarn") {
      const char* key = object_->has("rope_type") ? "rope_type" : "type";
      throw Error(path_, reader_.name(prefix_ + key), "default, linear or yarn", io::printable(type));
    }
    if (type == "linear") {
      scaling.type = RopeScaling::Type::kLinear;
      scaling.factor = *positive("factor", object_->number("factor"));
      return scaling;
    }
    scaling.type = RopeScaling::Type::kYarn;
    scaling.original_context = original_context(config);
    // Some models leave the factor to the two contexts.
    scaling.factor = object_->has("factor")
                         ? *optional("factor")
                         : static_cast<double>(config.context) / static_cast<double>(scaling.original_context);
    scaling.beta_fast = nonzero("beta_fast");
    scaling.beta_slow = nonzero("beta_slow");
    scaling.truncate = object_->boolean("truncate", true);
    scaling.attention_factor = optional("attention_factor");
    const std::optional<double> mscale = nonzero("mscale");
    const std::optional<double> mscale_all = nonzero("mscale_all_dim");
    if (!scaling.attention_factor && mscale && mscale_all) {
      const double ratio = yarn_magnitude(scaling.factor, *mscale) / yarn_magnitude(scaling.factor, *mscale_all);
      scaling.attention_factor = positive("mscale", ratio);
    }
    return scaling;
  }

 private:
  const io::JsonObject& object() const { return object_ ? *object_ : reader_.text(); }
  bool in_object(std::string_view key) const { return object_ && object_->has(key); }

  std::optional<double> positive(std::string_view key, double value) const {
    return checked_positive(value, path_, reader_.name(prefix_ + std::string(key)));
  }
  std::optional<double> optional(std::string_view key) const {
    return object_->has(key) ? positive(key, object_->number(key)) : std::nullopt;
  }
  // Transformers takes 0 for a key that is missing.
  std::optional<double> nonzero(std::string_view key) const {
    return object_->number(key, 0.0) != 0.0 ? optional(key) : std::nullopt;
  }

  // A key beside the object goes first; without either it is the context of the model.
  std::int64_t original_context(const ModelConfig& config) const {
    constexpr std::string_view kKey = "original_max_position_embeddings";
    if (reader_.text().has(kKey)) return reader_.size(kKey);
    if (!object_->has(kKey) && config.context > 0) return config.context;
    return checked_size(object_->integer(kKey), 1, path_, reader_.name(prefix_ + std::string(kKey)));
  }

  const Reader& reader_;
  std::string path_;
  std::optional<io::JsonObject> object_;
  std::string prefix_;  // "rope_parameters."
};

void read_rope(ModelConfig& config, const Reader& reader) {
  const RopeReader rope(reader);
  config.rope_theta = static_cast<float>(rope.number("rope_theta"));
  const double fraction = rope.number("partial_rotary_factor");
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    reader.fail("partial_rotary_factor", "a number above 0, at most 1", std::to_string(fraction));
  }
  config.rotary_dim = static_cast<int>(config.head_dim * fraction);
  config.rope_scaling = rope.scaling(config);
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
  read_mtp(config, reader, tensors);
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
  const ConfigKeys names = {.heads = reader.name("num_attention_heads"),
                            .head_dim = reader.name("head_dim"),
                            .rotary_dim = reader.name("partial_rotary_factor"),
                            .rope_theta = reader.name("rope_theta"),
                            .rope_factor = reader.name("rope_parameters.factor"),
                            .norm_eps = reader.name("rms_norm_eps"),
                            .value_heads = reader.name("linear_num_value_heads"),
                            .key_dim = reader.name("linear_key_head_dim"),
                            .value_dim = reader.name("linear_value_head_dim"),
                            .conv_width = reader.name("linear_conv_kernel_dim"),
                            .experts_used = reader.name("num_experts_per_tok")};
  check_config(config, names);
  derive_rope(config, names);
  return config;
}

}  // namespace thalweg::checkpoint
