#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"

namespace thalweg::convert {

// The models whose shapes are known here, by the names of their cards: "Qwen3.5-35B-A3B".
std::vector<std::string> published_models();

// A published model's configuration, without its prediction layers. `layers`: only so many, a multiple of four; 0: all.
// Throws Error for other names and numbers.
checkpoint::ModelConfig published_config(std::string_view model, int layers = 0);

}  // namespace thalweg::convert
