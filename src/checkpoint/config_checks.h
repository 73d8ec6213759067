#pragma once

// Checks that the configurations of both file formats share.

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "thalweg/error.h"

namespace thalweg::checkpoint {

int checked_size(std::int64_t value, std::int64_t least, const std::string& path, std::string_view key);
// Returns `layers`; throws Error above 4096.
int checked_layers(int layers, const std::string& path, std::string_view key);

// Full attention where (i + 1) % interval == 0.
std::vector<LayerKind> layers_of_interval(std::size_t layers, int interval);

// Rows of the embedding table.
std::int64_t first_dim(const io::TensorSource& tensors, std::string_view name);

// Whether a tensor's name begins so.
bool has_prefix(const io::TensorSource& tensors, std::string_view prefix);

void add_end_token(ModelConfig& config, std::int64_t id, std::string_view key);

// Of the trunk's layers and the MTP layer.
bool any_sparse(const ModelConfig& config);
bool any_dense(const ModelConfig& config);

// The keys of a file that errors name, by the member of ModelConfig.
struct ConfigKeys {
  std::string heads;
  std::string head_dim;
  std::string rotary_dim;
  std::string rope_theta;
  std::string rope_factor;
  std::string norm_eps;
  std::string value_heads;
  std::string key_dim;
  std::string value_dim;
  std::string conv_width;
  std::string experts_used;
};

// Throws Error for values that contradict each other or that the operations do not support.
void check_config(const ModelConfig& config, const ConfigKeys& keys);

// Throws Error unless `value` is a positive finite f32. Returns it.
double checked_positive(double value, const std::string& path, std::string_view key);

// Computes rope_frequencies and rope_scale of a configuration that was checked. Throws Error if one of them is not
// finite.
void derive_rope(ModelConfig& config, const ConfigKeys& keys);

}  // namespace thalweg::checkpoint
