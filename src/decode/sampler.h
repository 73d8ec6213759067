#pragma once

#include <cstdint>
#include <span>

#include "thalweg/model.h"

namespace thalweg::decode {

// Throws Error that names the setting.
void check_sampling(const Sampling& sampling);

// Chooses the token after `tokens` from its logits [vocabulary] (Sampling says how), among those whose bits are set in
// `allowed` [ceil(vocabulary/32)]; empty: among all. Throws Error if a logit is NaN or +infinity, or if all that are
// allowed are -infinity.
std::int32_t sample_token(std::span<const float> logits, std::span<const std::int32_t> tokens, const Sampling& sampling,
                          std::span<const std::uint32_t> allowed = {});

}  // namespace thalweg::decode
