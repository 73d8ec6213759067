#include "convert/published_shapes.h"

#include <array>

#include "checkpoint/config_checks.h"
#include "thalweg/error.h"

namespace thalweg::convert {
namespace {

constexpr std::array<ModelShapes, 3> kPublished = {{
    {"Qwen3.5-35B-A3B", "qwen35moe", 2048, 40, 16, 2, 16, 32, 256, 8, 512, 248320, 262144},
    {"Qwen3-Next-80B-A3B", "qwen3next", 2048, 48, 16, 2, 16, 32, 512, 10, 512, 151936, 262144},
    {"Qwen3.5-27B", "qwen35", 5120, 64, 24, 4, 16, 48, 0, 0, 17408, 248320, 262144},
}};

}  // namespace

checkpoint::ModelConfig config_of(const ModelShapes& shapes) {
  checkpoint::ModelConfig config;
  config.architecture = shapes.architecture;
  config.name = shapes.name;
  config.layers = checkpoint::layers_of_interval(static_cast<std::size_t>(shapes.layers), kLayerInterval);
  config.sparse.assign(config.layers.size(), shapes.experts > 0);
  config.hidden = shapes.hidden;
  config.vocabulary = shapes.vocabulary;
  config.context = shapes.context;
  config.norm_eps = 1e-6F;
  config.heads = shapes.heads;
  config.kv_heads = shapes.kv_heads;
  config.head_dim = 256;
  config.rotary_dim = 64;
  config.rope_theta = 1e7F;
  config.key_heads = shapes.key_heads;
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

std::vector<std::string> published_models() {
  std::vector<std::string> names;
  for (const ModelShapes& shapes : kPublished) names.emplace_back(shapes.name);
  return names;
}

ModelShapes published_shapes(std::string_view model, int layers) {
  if (layers < 0 || layers % kLayerInterval != 0) {
    throw Error("synth", "--layers", "a multiple of " + std::to_string(kLayerInterval), std::to_string(layers));
  }
  std::string names;
  for (ModelShapes shapes : kPublished) {
    if (shapes.name == model) {
      if (layers > 0) shapes.layers = layers;
      return shapes;
    }
    names.append(names.empty() ? "" : ", ").append(shapes.name);
  }
  throw Error("synth", "--like", "one of " + names, std::string(model));
}

}  // namespace thalweg::convert
