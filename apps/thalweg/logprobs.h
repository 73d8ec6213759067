#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "thalweg/model.h"

namespace thalweg::app {

struct TokenLogprob {
  std::int32_t token = 0;
  double logprob = 0;
};

// ln of the model's probabilities: of one token, and of the `count` likeliest ones in falling order, the lower id first
// where they tie.
TokenLogprob token_logprob(std::span<const float> logits, std::int32_t token);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, std::size_t count);

// [{"id", "text", "logprob", "top": [{"id", "text", "logprob"}, ...]}, ...] of a generated text. Without a tokenizer
// there is no "text".
class LogprobList {
 public:
  LogprobList(const Model& model, std::size_t alternatives) : model_(model), alternatives_(alternatives) {}

  void add(std::int32_t token, std::span<const float> logits);
  nlohmann::json json() const;

 private:
  struct Entry {
    TokenLogprob chosen;
    std::vector<TokenLogprob> top;
  };
  nlohmann::json describe(const TokenLogprob& token) const;

  const Model& model_;
  std::size_t alternatives_;
  std::vector<Entry> entries_;
};

}  // namespace thalweg::app
