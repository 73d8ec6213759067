#pragma once

// What the operations on logits share with the model: on the host.

#include <cstdint>
#include <span>
#include <string_view>

#include "thalweg/sampling.h"

namespace thalweg {

// Throws Error of `operation` that names the setting out of range.
void check_sampling(const Sampling& sampling, std::string_view operation);

// A number in 0..1 (1 excluded) that depends on seed and position only.
double draw(std::uint64_t seed, std::uint64_t position);

// Of row n of valid arguments in the host's memory.
Sampling sampling_of(const SampleTokensArgs& args, std::int64_t n);
// The last tokens of the row's history, as many as are penalized.
std::span<const std::int32_t> penalized_tokens(const SampleTokensArgs& args, std::int64_t n, const Sampling& sampling);

// values = logits with the penalty of `tokens`; ids that are not in the vocabulary are ignored.
void penalize(std::span<const float> logits, std::span<const std::int32_t> tokens, float penalty,
              std::span<float> values);

// The mask of the row: bits of tokens. Empty: all are allowed.
std::span<const std::uint32_t> allowed_tokens(const SampleTokensArgs& args, std::int64_t n);
// values = logits of the tokens that are allowed, of the others -infinity; `allowed` as above.
void keep_allowed(std::span<const float> logits, std::span<const std::uint32_t> allowed, std::span<float> values);

// Whether softmax(logits) exists: no NaN, no +infinity, and one above -infinity.
bool has_probabilities(std::span<const float> logits);
// ln of the sum of all exponentials.
double log_normalizer(std::span<const float> logits);
// Fills order [V] with all tokens, of which the first `count` are the likeliest in falling order, ties to the lower id.
void sort_likeliest(std::span<const float> logits, std::size_t count, std::span<std::int32_t> order);

}  // namespace thalweg
