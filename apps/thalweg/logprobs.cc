#include "logprobs.h"

#include <nlohmann/json.hpp>

namespace thalweg::app {

void LogprobList::add(std::int32_t token, std::span<const float> logits) {
  entries_.push_back({{token, decode::logprob(logits, token)}, decode::top_logprobs(logits, alternatives_)});
}

nlohmann::json LogprobList::describe(const decode::TokenLogprob& token) const {
  nlohmann::json row = {{"id", token.token}, {"logprob", token.logprob}};
  if (model_.info().has_tokenizer) row["text"] = model_.token_bytes(token.token);
  return row;
}

nlohmann::json LogprobList::json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    nlohmann::json row = describe(entry.chosen);
    row["top"] = nlohmann::json::array();
    for (const decode::TokenLogprob& token : entry.top) row["top"].push_back(describe(token));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace thalweg::app
