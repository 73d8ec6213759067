#include "server/content_tokens.h"

#include <utility>

namespace thalweg::server {

void ContentTokens::add(std::size_t bytes, TokenLogprobs token) { tokens_.push_back({std::move(token), bytes}); }

std::size_t ContentTokens::owner_of_next() {
  std::size_t i = 0;
  while (i + 1 < tokens_.size() && tokens_[i].unread == 0) ++i;
  if (i < tokens_.size() && tokens_[i].unread > 0) --tokens_[i].unread;
  return first_ + i;
}

// Content comes out in order and as it was written, so it stands at the end of what was held, with markup before it.
// Only a blank or the beginning of a tag is held back itself while what stands before it comes out.
std::size_t ContentTokens::find(std::string_view content) const {
  std::string_view held = held_;
  if (std::string_view(" \t\r\n<").find(held.back()) != std::string_view::npos) {
    const std::string_view before = held.substr(0, held.size() - 1);
    if (before.ends_with(content)) return before.size() - content.size();
  }
  if (held.ends_with(content)) return held.size() - content.size();
  return held.find(content);  // blanks before a call
}

std::vector<TokenLogprobs> ContentTokens::take_from(std::size_t at, std::size_t length) {
  std::vector<TokenLogprobs> taken;
  for (std::size_t i = at; i < at + length; ++i) {
    const std::size_t owner = owners_[i] - first_;
    if (owner >= tokens_.size() || tokens_[owner].taken) continue;
    tokens_[owner].taken = true;
    taken.push_back(tokens_[owner].logprobs);
  }
  forget(at + length);
  return taken;
}

void ContentTokens::forget(std::size_t bytes) {
  held_.erase(0, bytes);
  owners_.erase(owners_.begin(), owners_.begin() + static_cast<std::ptrdiff_t>(bytes));
  const auto is_needed = [&](std::size_t number) { return !owners_.empty() && owners_.front() <= number; };
  while (!tokens_.empty() && tokens_.front().unread == 0 && !is_needed(first_)) {
    tokens_.pop_front();
    ++first_;
  }
}

std::vector<TokenLogprobs> ContentTokens::take(char byte, std::string_view content) {
  if (tokens_.empty() && held_.empty()) return {};  // not requested
  held_ += byte;
  owners_.push_back(owner_of_next());
  return finish(content);
}

std::vector<TokenLogprobs> ContentTokens::finish(std::string_view content) {
  if (content.empty() || held_.empty()) return {};
  const std::size_t at = find(content);
  return at == std::string_view::npos ? std::vector<TokenLogprobs>() : take_from(at, content.size());
}

void ContentTokens::drop() { forget(held_.size()); }

}  // namespace thalweg::server
