#pragma once

#include <cstdint>

#include "thalweg/model.h"

namespace thalweg::app {

// The operations of a step over `tokens` tokens, `tokens_each` of each sequence at most, after `context` others.
void print_profile(Model& model, std::int64_t tokens, std::int64_t tokens_each, std::int64_t context);

}  // namespace thalweg::app
