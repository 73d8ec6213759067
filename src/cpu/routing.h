#pragma once

#include <cstdint>

namespace thalweg::cpu {

// The top_k largest of logits[E] in descending order, ties to the lower id, NaN below everything; weights are their
// probabilities. `probabilities` is scratch for E values; NaN logits are overwritten.
void route_row(float* logits, std::int64_t experts, std::int64_t top_k, bool renormalize, std::int32_t* ids,
               float* weights, float* probabilities);

}  // namespace thalweg::cpu
