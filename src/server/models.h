#pragma once

#include <cstdint>
#include <string>

#include "thalweg/model.h"

namespace thalweg::server {

struct ServedModel {
  const std::string& name;
  std::int64_t since;  // seconds since 1970
  const Model& model;
};

// What /v1/models says: a list of the one model, or the model itself.
std::string openai_models(const ServedModel& model, bool list);
std::string anthropic_models(const ServedModel& model, bool list);

}  // namespace thalweg::server
