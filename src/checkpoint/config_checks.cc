#include "checkpoint/config_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace thalweg::checkpoint {

int checked_size(std::int64_t value, std::int64_t least, const std::string& path, std::string_view key) {
  if (value < least || value > std::numeric_limits<std::int32_t>::max()) {
    throw Error(path, key, "a number from " + std::to_string(least) + " to 2147483647", std::to_string(value));
  }
  return static_cast<int>(value);
}

int checked_layers(int layers, const std::string& path, std::string_view key) {
  constexpr int kMost = 4096;
  if (layers > kMost) throw Error(path, key, "at most " + std::to_string(kMost) + " layers", std::to_string(layers));
  return layers;
}

double checked_positive(double value, const std::string& path, std::string_view key) {
  const auto rounded = static_cast<float>(value);
  if (!(rounded > 0.0F && std::isfinite(rounded))) throw Error(path, key, "a positive number", std::to_string(value));
  return value;
}

void derive_rope(ModelConfig& config, const ConfigKeys& keys) {
  config.rope_scale = static_cast<float>(rope_scale(config.rope_scaling));
  config.rope_frequencies =
      rope_frequencies(config.rope_scaling, static_cast<double>(config.rope_theta), config.rotary_dim);
  for (float frequency : config.rope_frequencies) {
    if (std::isfinite(frequency)) continue;
    throw Error(config.path, keys.rope_factor, "a scaling of the rotary embedding with finite frequencies",
                std::to_string(frequency) + " with rope_theta " + std::to_string(config.rope_theta));
  }
}

std::vector<LayerKind> layers_of_interval(std::size_t layers, int interval) {
  std::vector<LayerKind> kinds(layers, LayerKind::kGatedDelta);
  const auto step = static_cast<std::size_t>(interval);
  for (std::size_t i = step - 1; i < layers; i += step) kinds[i] = LayerKind::kAttention;
  return kinds;
}

std::int64_t first_dim(const io::TensorSource& tensors, std::string_view name) { return tensors.tensor(name).dim(0); }

bool has_prefix(const io::TensorSource& tensors, std::string_view prefix) {
  const std::vector<std::string> names = tensors.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

void add_end_token(ModelConfig& config, std::int64_t id, std::string_view key) {
  if (id < 0 || id >= config.vocabulary) {
    throw Error(config.path, key, "a token from 0 to " + std::to_string(config.vocabulary - 1), std::to_string(id));
  }
  const auto token = static_cast<std::int32_t>(id);
  std::vector<std::int32_t>& tokens = config.end_tokens;
  if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
}

bool any_sparse(const ModelConfig& config) {
  return config.mtp_sparse || std::find(config.sparse.begin(), config.sparse.end(), true) != config.sparse.end();
}

bool any_dense(const ModelConfig& config) {
  const bool mtp = config.has_mtp && !config.mtp_sparse;
  return mtp || std::find(config.sparse.begin(), config.sparse.end(), false) != config.sparse.end();
}

void check_config(const ModelConfig& config, const ConfigKeys& keys) {
  const auto require = [&](bool condition, const std::string& key, const std::string& expected,
                           const std::string& given) {
    if (!condition) throw Error(config.path, key, expected, given);
  };
  require(config.heads % config.kv_heads == 0, keys.heads,
          "a multiple of the " + std::to_string(config.kv_heads) + " key heads", std::to_string(config.heads));
  require(config.rotary_dim >= 2 && config.rotary_dim % 2 == 0 && config.rotary_dim <= config.head_dim, keys.rotary_dim,
          "an even number from 2 to the head size of " + std::to_string(config.head_dim),
          std::to_string(config.rotary_dim));
  require(std::isfinite(config.rope_theta) && config.rope_theta > 0, keys.rope_theta, "a positive number",
          std::to_string(config.rope_theta));
  require(std::isfinite(config.norm_eps) && config.norm_eps >= 0, keys.norm_eps, "0 or more",
          std::to_string(config.norm_eps));
  require(config.value_heads % config.key_heads == 0, keys.value_heads,
          "a multiple of the " + std::to_string(config.key_heads) + " key heads", std::to_string(config.value_heads));
  constexpr std::array<int, 7> kSizes = {16, 32, 64, 96, 128, 192, 256};
  const auto known = [&](int size) { return std::find(kSizes.begin(), kSizes.end(), size) != kSizes.end(); };
  const std::string sizes = "a head size of 16, 32, 64, 96, 128, 192 or 256";
  require(known(config.key_dim), keys.key_dim, sizes, std::to_string(config.key_dim));
  require(known(config.value_dim), keys.value_dim, sizes, std::to_string(config.value_dim));
  require(config.conv_width >= 2 && config.conv_width <= 8, keys.conv_width, "2 to 8",
          std::to_string(config.conv_width));
  // The products below are row sizes, which must fit into int32.
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  require(std::int64_t{2} * config.heads <= most / config.head_dim, keys.head_dim,
          "heads of a size that a row can hold", std::to_string(config.head_dim));
  require(std::int64_t{4} * config.value_heads <= most / std::max(config.key_dim, config.value_dim), keys.value_heads,
          "heads that a row can hold", std::to_string(config.value_heads));
  if (any_sparse(config)) {
    require(config.experts_used <= config.experts, keys.experts_used, "at most " + std::to_string(config.experts),
            std::to_string(config.experts_used));
  }
}

}  // namespace thalweg::checkpoint
