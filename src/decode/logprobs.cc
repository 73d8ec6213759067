#include "decode/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace thalweg::decode {
namespace {

// ln of the sum of all exponentials.
double normalizer(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

}  // namespace

double logprob(std::span<const float> logits, std::int32_t token) {
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - normalizer(logits);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::size_t count) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float left = logits[static_cast<std::size_t>(a)];
    const float right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(), likelier);
  const double all = normalizer(logits);
  std::vector<TokenLogprob> top;
  for (const std::int32_t token : std::span(order).first(count)) {
    top.push_back({token, static_cast<double>(logits[static_cast<std::size_t>(token)]) - all});
  }
  return top;
}

}  // namespace thalweg::decode
