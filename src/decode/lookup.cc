#include "decode/lookup.h"

#include <algorithm>

namespace thalweg::decode {

Lookup::Lookup() : latest_(kHeads, -1) {}

void Lookup::add(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (text_.size() == 2 * kWindow) {
      text_.erase(text_.begin(), text_.begin() + kWindow);
      before_.clear();
      std::fill(latest_.begin(), latest_.end(), -1);
      for (std::size_t i = 0; i < text_.size(); ++i) index(i);
    }
    text_.push_back(token);
    index(text_.size() - 1);
  }
}

std::size_t Lookup::hash(std::size_t position) const {
  std::uint64_t mixed = 0;
  for (std::size_t i = 0; i < kGram; ++i) {
    mixed = (mixed ^ static_cast<std::uint32_t>(text_[position - i])) * 0x9E3779B97F4A7C15U;
    mixed ^= mixed >> 29U;
  }
  return static_cast<std::size_t>(mixed % kHeads);
}

void Lookup::index(std::size_t position) {
  before_.push_back(-1);
  if (position + 1 < kGram) return;
  std::int32_t& latest = latest_[hash(position)];
  before_[position] = latest;
  latest = static_cast<std::int32_t>(position);
}

std::size_t Lookup::match(std::size_t first, std::size_t second) const {
  std::size_t length = 0;
  while (length < kLongestMatch && length <= first && text_[first - length] == text_[second - length]) ++length;
  return length;
}

void Lookup::propose(std::size_t most, std::vector<std::int32_t>& drafts) const {
  drafts.clear();
  if (text_.size() < kGram || most == 0) return;
  const std::size_t end = text_.size() - 1;
  std::size_t best = 0;
  std::size_t longest = kGram - 1;
  std::int32_t candidate = before_[end];
  for (int i = 0; i < kMostCandidates && candidate >= 0 && longest < kLongestMatch; ++i) {
    const auto position = static_cast<std::size_t>(candidate);
    const std::size_t length = match(position, end);
    if (length > longest) {
      longest = length;
      best = position;
    }
    candidate = before_[position];
  }
  if (longest < kGram) return;
  // Beyond the end the text is taken to repeat.
  const std::size_t period = end - best;
  for (std::size_t i = 0; i < most; ++i) {
    drafts.push_back(i < period ? text_[best + 1 + i] : drafts[i - period]);
  }
}

}  // namespace thalweg::decode
