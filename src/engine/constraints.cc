#include "engine/constraints.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "engine/thought_budget.h"

namespace thalweg::engine {
namespace {

constexpr std::size_t kMostCaches = 16;  // of grammars that no request uses any more
constexpr std::string_view kEndOfThoughts = "</think>";
// They are text to a grammar, also where a file calls them control tokens.
constexpr std::string_view kCallMarks[] = {"<tool_call>", "</tool_call>"};

class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<grammar::MaskCache> cache, std::int32_t free_until)
      : follower_(std::move(cache), free_until) {}

  std::span<const std::uint32_t> allowed() override { return follower_.allowed(); }
  void accept(std::int32_t token) override { follower_.accept(token); }

 private:
  grammar::Follower follower_;
};

}  // namespace

const text::Tokenizer& Constraints::tokenizer() const {
  const text::Tokenizer* tokenizer = slots_.tokenizer();
  if (tokenizer == nullptr) throw Error("Engine", "constraint", "a model with a tokenizer", "one without");
  return *tokenizer;
}

std::int32_t Constraints::end_of_thoughts(const char* argument) const {
  const std::int32_t token = tokenizer().find(kEndOfThoughts);
  if (token < 0) throw Error("Engine", argument, "a vocabulary with the token </think>", "one without");
  return token;
}

std::unique_ptr<TokenConstraint> Constraints::make(const Grammar& grammar, bool after_thoughts) {
  tokenizer();
  const std::int32_t free_until = after_thoughts ? end_of_thoughts("after_thoughts") : -1;
  const std::lock_guard lock(mutex_);
  return std::make_unique<GrammarConstraint>(cache_of(grammar), free_until);
}

std::unique_ptr<TokenConstraint> Constraints::limit_thoughts(std::int64_t tokens,
                                                             std::unique_ptr<TokenConstraint> then) const {
  if (tokens < 0) throw Error("Engine", "thought_budget", "0 tokens or more", std::to_string(tokens));
  return std::make_unique<ThoughtBudget>(tokens, end_of_thoughts("thought_budget"), slots_.vocabulary(),
                                         std::move(then));
}

std::shared_ptr<const grammar::Vocabulary> Constraints::vocabulary() {
  if (vocabulary_) return vocabulary_;
  const text::Tokenizer& tokenizer = *slots_.tokenizer();
  const auto size = static_cast<std::int32_t>(slots_.vocabulary());
  std::vector<std::string_view> texts;
  std::vector<std::int32_t> others;
  for (std::int32_t token = 0; token < size; ++token) {
    texts.push_back(tokenizer.token_bytes(token));
    const auto* const mark = std::find(std::begin(kCallMarks), std::end(kCallMarks), texts.back());
    if (tokenizer.is_control(token) && mark == std::end(kCallMarks)) others.push_back(token);
  }
  const std::vector<std::int32_t>& ends = model_.info().end_tokens;
  std::erase_if(others, [&](std::int32_t token) { return std::find(ends.begin(), ends.end(), token) != ends.end(); });
  vocabulary_ = std::make_shared<const grammar::Vocabulary>(std::move(texts), ends, std::move(others));
  return vocabulary_;
}

std::shared_ptr<grammar::MaskCache> Constraints::cache_of(const Grammar& grammar) {
  const auto is_its = [&](const auto& cache) { return cache->source() == grammar.automaton().source(); };
  const auto found = std::find_if(caches_.begin(), caches_.end(), is_its);
  if (found != caches_.end()) {
    caches_.splice(caches_.begin(), caches_, found);
  } else {
    caches_.push_front(std::make_shared<grammar::MaskCache>(grammar.shared(), vocabulary()));
    if (caches_.size() > kMostCaches) caches_.pop_back();
  }
  return caches_.front();
}

}  // namespace thalweg::engine
