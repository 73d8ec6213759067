#pragma once

#include <string>

#include "thalweg/model.h"

namespace thalweg::app {

// What a sequence's state is kept in.
struct StateTypes {
  std::string kv = {};        // f16, bf16, f32, q8_0, or empty for the default
  std::string state = "f32";  // f32, bf16

  void set(ModelOptions& options) const;
};

}  // namespace thalweg::app
