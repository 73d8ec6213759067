#pragma once

// What both ways to write down a configuration share.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "thalweg/error.h"

namespace thalweg::checkpoint {

int checked_size(std::int64_t value, std::int64_t least, const std::string& path, std::string_view key);
// A number of layers that is not absurd.
int checked_layers(int layers, const std::string& path, std::string_view key);

// Full attention where (i + 1) % interval == 0.
std::vector<LayerKind> layers_of_interval(std::size_t layers, int interval);

// Rows of the embedding table.
std::int64_t first_dim(const io::TensorSource& tensors, std::string_view name);

void add_end_token(ModelConfig& config, std::int64_t id, std::string_view key);

bool any_sparse(const ModelConfig& config);
bool any_dense(const ModelConfig& config);

// Relations between values; `key` names in the file what it is given the name of in ModelConfig.
void check_config(const ModelConfig& config, const std::function<std::string(std::string_view what)>& key);

}  // namespace thalweg::checkpoint
