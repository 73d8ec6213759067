#include "decode/logprobs.h"

#include <algorithm>

#include "core/sampling.h"

namespace thalweg::decode {

double logprob(std::span<const float> logits, std::int32_t token) {
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - log_normalizer(logits);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::size_t count) {
  std::vector<std::int32_t> order(logits.size());
  count = std::min(count, order.size());
  sort_likeliest(logits, count, order);
  const double all = log_normalizer(logits);
  std::vector<TokenLogprob> top;
  for (const std::int32_t token : std::span(order).first(count)) {
    top.push_back({token, static_cast<double>(logits[static_cast<std::size_t>(token)]) - all});
  }
  return top;
}

}  // namespace thalweg::decode
