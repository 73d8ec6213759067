#include "logprobs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace thalweg::app {
namespace {

// ln of the sum of all exponentials.
double normalizer(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

}  // namespace

TokenLogprob token_logprob(std::span<const float> logits, std::int32_t token) {
  return {token, static_cast<double>(logits[static_cast<std::size_t>(token)]) - normalizer(logits)};
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

void LogprobList::add(std::int32_t token, std::span<const float> logits) {
  entries_.push_back({token_logprob(logits, token), top_logprobs(logits, alternatives_)});
}

nlohmann::json LogprobList::describe(const TokenLogprob& token) const {
  nlohmann::json row = {{"id", token.token}, {"logprob", token.logprob}};
  if (model_.info().has_tokenizer) row["text"] = model_.token_bytes(token.token);
  return row;
}

nlohmann::json LogprobList::json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    nlohmann::json row = describe(entry.chosen);
    row["top"] = nlohmann::json::array();
    for (const TokenLogprob& token : entry.top) row["top"].push_back(describe(token));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace thalweg::app
