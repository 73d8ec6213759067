#pragma once

#include <cstdint>

#include "thalweg/moe.h"

namespace thalweg::cpu {

// How experts are chosen and weighed, as of RouteTopKArgs.
struct RoutingRule {
  RouterScore score;
  const float* bias;  // [E], or null
  bool renormalize;
};

// The top_k best of logits[E] in descending order, ties to the lower id, NaN below everything, and their weights.
// `scores` is scratch for E values; the logits are overwritten.
void route_row(const RoutingRule& rule, float* logits, std::int64_t experts, std::int64_t top_k, std::int32_t* ids,
               float* weights, float* scores);

}  // namespace thalweg::cpu
