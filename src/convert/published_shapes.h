#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"

namespace thalweg::convert {

inline constexpr int kLayerInterval = 4;  // layers, the last with attention

// What differs between models of these families; config_of() knows the rest.
struct ModelShapes {
  std::string_view name;
  std::string_view architecture;
  std::int64_t hidden = 0;
  int layers = 0;  // a multiple of kLayerInterval
  int heads = 0;
  int kv_heads = 0;
  int key_heads = 0;
  int value_heads = 0;
  int experts = 0;  // 0: dense
  int experts_used = 0;
  std::int64_t feed_forward = 0;  // of an expert and of the shared one, or dense
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
};

// Of a GGUF file without prediction layers.
checkpoint::ModelConfig config_of(const ModelShapes& shapes);

// The models whose shapes are known here, by the names of their cards: "Qwen3.5-35B-A3B".
std::vector<std::string> published_models();

// The shapes of a published model. `layers`: only so many, a multiple of kLayerInterval; 0: all. Throws Error for other
// names and numbers.
ModelShapes published_shapes(std::string_view model, int layers = 0);

}  // namespace thalweg::convert
