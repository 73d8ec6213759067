#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "decode/logprobs.h"
#include "thalweg/model.h"

namespace thalweg::app {

// [{"id", "text", "logprob", "top": [{"id", "text", "logprob"}, ...]}, ...] of a generated text. Without a tokenizer
// there is no "text".
class LogprobList {
 public:
  LogprobList(const Model& model, std::size_t alternatives) : model_(model), alternatives_(alternatives) {}

  void add(std::int32_t token, std::span<const float> logits);
  nlohmann::json json() const;

 private:
  struct Entry {
    decode::TokenLogprob chosen;
    std::vector<decode::TokenLogprob> top;
  };
  nlohmann::json describe(const decode::TokenLogprob& token) const;

  const Model& model_;
  std::size_t alternatives_;
  std::vector<Entry> entries_;
};

}  // namespace thalweg::app
