#include "text/token_matcher.h"

namespace thalweg::text {
namespace {

std::uint64_t edge(std::size_t node, char byte) {
  return (static_cast<std::uint64_t>(node) << 8) | static_cast<unsigned char>(byte);
}

}  // namespace

void TokenMatcher::add(std::string_view token, std::int32_t id) {
  if (token.empty()) return;
  starts_[static_cast<unsigned char>(token[0])] = true;
  std::size_t node = 0;
  for (const char byte : token) {
    const auto [found, inserted] = next_.try_emplace(edge(node, byte), ids_.size());
    if (inserted) ids_.push_back(-1);
    node = found->second;
  }
  ids_[node] = id;
}

TokenMatcher::Match TokenMatcher::at(std::string_view text) const {
  Match match;
  if (text.empty() || !starts_[static_cast<unsigned char>(text[0])]) return match;
  std::size_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto found = next_.find(edge(node, text[i]));
    if (found == next_.end()) break;
    node = found->second;
    if (ids_[node] >= 0) match = {ids_[node], i + 1};
  }
  return match;
}

}  // namespace thalweg::text
