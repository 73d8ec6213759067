#pragma once

#include <optional>
#include <span>

#include "capi/errors.h"
#include "thalweg/model.h"
#include "thalweg/thalweg.h"

// An engine takes the model of a handle away; the handle then serves the text functions.
struct thalweg_model {
  std::optional<thalweg::Model> own;
  const thalweg::Model* text = nullptr;  // own, or the engine's
};

namespace thalweg::capi {

inline Model& own_model(thalweg_model* handle, const char* function) {
  require_pointer(handle, function, "model");
  if (!handle->own) throw Error(function, "model", "a model of its own", "one that an engine has");
  return *handle->own;
}

Sampling sampling_of(const thalweg_sampling* given, const char* function);

inline std::span<const std::int32_t> tokens_of(const int32_t* tokens, size_t count, const char* function) {
  if (count > 0) require_pointer(tokens, function, "tokens");
  return {tokens, count};
}

}  // namespace thalweg::capi
