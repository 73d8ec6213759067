#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/rope_scaling.h"
#include "io/gguf.h"
#include "io/json_file.h"
#include "io/tensor_source.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/model.h"

namespace thalweg::checkpoint {

// How a file names and lays out its tensors.
enum class Naming : std::uint8_t { kGguf, kHuggingFace };

// A model's configuration, read from its file. Every size is positive and within int32 unless a comment says otherwise.
struct ModelConfig {
  std::string path;          // for messages
  std::string architecture;  // "qwen3next", "qwen35", "qwen35moe"
  std::string name;
  Naming naming = Naming::kGguf;

  std::vector<LayerKind> layers;  // of the trunk
  std::vector<bool> sparse;       // the layer has experts
  int mtp_layers = 0;             // that the file announces; in a GGUF file they are its last blocks
  bool has_mtp = false;           // there is one, and the file has tensors of it
  bool mtp_sparse = false;        // it has experts
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;  // 0: the file does not say
  float norm_eps = 0;
  bool norm_plus_one = false;  // the file stores w of a norm's weight 1 + w; never of the gated norm
  bool tied_head = false;

  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;
  float rope_theta = 0;
  RopeScaling rope_scaling;
  std::vector<float> rope_frequencies;  // [rotary_dim/2], empty without scaling
  float rope_scale = 1.0F;              // of cosines and sines

  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;    // of one head
  int value_dim = 0;  // of one head
  int conv_width = 0;
  HeadMap head_map = HeadMap::kUnset;

  int experts = 0;  // 0: no layer is sparse
  int experts_used = 0;
  std::int64_t expert_hidden = 0;
  std::int64_t shared_hidden = 0;  // 0: no shared expert
  bool renormalize = true;
  std::int64_t dense_hidden = 0;  // 0: every layer is sparse

  std::vector<std::int32_t> end_tokens;

  std::int64_t key_channels() const { return std::int64_t{key_heads} * key_dim; }
  std::int64_t value_channels() const { return std::int64_t{value_heads} * value_dim; }
  std::int64_t conv_channels() const { return 2 * key_channels() + value_channels(); }
};

// From a GGUF file's metadata; `tensors` gives the vocabulary, whether there is a head or an MTP layer, and which
// layers have experts. Throws Error that names file and key.
ModelConfig read_config(const io::GgufMetadata& metadata, const io::TensorSource& tensors, const std::string& path);

// From a Hugging Face folder's config.json. Throws Error that names file and key.
ModelConfig read_config(const io::JsonObject& config, const io::TensorSource& tensors);

// Adds `eos_token_id` of an object that may have one, a number or several; `key` names it in errors.
void read_end_tokens(ModelConfig& config, const io::JsonObject& object, std::string_view key);

}  // namespace thalweg::checkpoint
