#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace thalweg::decode {

struct TokenLogprob {
  std::int32_t token = 0;
  double logprob = 0;
};

// ln of the probabilities that logits [vocabulary] stand for, in f64: of one token, and of the `count` likeliest tokens
// in falling order, the lower id first where they tie.
double logprob(std::span<const float> logits, std::int32_t token);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::size_t count);

}  // namespace thalweg::decode
