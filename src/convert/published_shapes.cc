#include "convert/published_shapes.h"

#include <algorithm>
#include <array>

#include "checkpoint/config_checks.h"
#include "thalweg/error.h"

namespace thalweg::convert {
namespace {

constexpr int kInterval = 4;  // layers, the last with attention

// What differs between the models.
struct Shapes {
  std::string_view name;
  std::string_view architecture;
  std::int64_t hidden;
  int layers;
  int heads;
  int kv_heads;
  int value_heads;
  int experts;  // 0: dense
  int experts_used;
  std::int64_t feed_forward;  // of an expert and of the shared one, or dense
  std::int64_t vocabulary;
};

// From the config.json of each model's repository.
constexpr std::array<Shapes, 3> kShapes = {{
    {"Qwen3.5-35B-A3B", "qwen35moe", 2048, 40, 16, 2, 32, 256, 8, 512, 248320},
    {"Qwen3-Next-80B-A3B", "qwen3next", 2048, 48, 16, 2, 32, 512, 10, 512, 151936},
    {"Qwen3.5-27B", "qwen35", 5120, 64, 24, 4, 48, 0, 0, 17408, 248320},
}};

const Shapes& shapes_of(std::string_view model) {
  for (const Shapes& shapes : kShapes) {
    if (shapes.name == model) return shapes;
  }
  std::string names;
  for (const Shapes& shapes : kShapes) names.append(names.empty() ? "" : ", ").append(shapes.name);
  throw Error("synth", "--like", "one of " + names, std::string(model));
}

}  // namespace

std::vector<std::string> published_models() {
  std::vector<std::string> names;
  for (const Shapes& shapes : kShapes) names.emplace_back(shapes.name);
  return names;
}

checkpoint::ModelConfig published_config(std::string_view model, int layers) {
  const Shapes& shapes = shapes_of(model);
  if (layers < 0 || layers % kInterval != 0) {
    throw Error("synth", "--layers", "a multiple of " + std::to_string(kInterval), std::to_string(layers));
  }
  checkpoint::ModelConfig config;
  config.architecture = shapes.architecture;
  config.name = shapes.name;
  const int count = layers > 0 ? layers : shapes.layers;
  config.layers = checkpoint::layers_of_interval(static_cast<std::size_t>(count), kInterval);
  config.sparse.assign(config.layers.size(), shapes.experts > 0);
  config.hidden = shapes.hidden;
  config.vocabulary = shapes.vocabulary;
  config.context = 262144;
  config.norm_eps = 1e-6F;
  config.heads = shapes.heads;
  config.kv_heads = shapes.kv_heads;
  config.head_dim = 256;
  config.rotary_dim = 64;
  config.rope_theta = 1e7F;
  config.key_heads = 16;
  config.value_heads = shapes.value_heads;
  config.key_dim = config.value_dim = 128;
  config.conv_width = 4;
  if (shapes.experts > 0) {
    config.experts = shapes.experts;
    config.experts_used = shapes.experts_used;
    config.expert_hidden = config.shared_hidden = shapes.feed_forward;
  } else {
    config.dense_hidden = shapes.feed_forward;
  }
  return config;
}

}  // namespace thalweg::convert
