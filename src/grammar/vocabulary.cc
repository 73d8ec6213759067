#include "grammar/vocabulary.h"

#include <algorithm>
#include <bitset>
#include <string>
#include <utility>

#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

std::size_t shared_beginning(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

bool is_of_utf8(std::size_t byte) { return byte != 0xc0 && byte != 0xc1 && byte < 0xf5; }

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string_view> texts, std::vector<std::int32_t> ends,
                       std::vector<std::int32_t> others)
    : texts_(std::move(texts)), ends_(std::move(ends)), others_(std::move(others)) {
  for (const std::int32_t token : ends_) texts_.at(static_cast<std::size_t>(token)) = {};
  for (const std::int32_t token : others_) texts_.at(static_cast<std::size_t>(token)) = {};
  check_bytes();
  build_trie();
  build_mask();
}

void Vocabulary::check_bytes() const {
  std::bitset<256> bytes;
  for (const std::string_view text : texts_) {
    if (text.size() == 1) bytes[static_cast<unsigned char>(text.front())] = true;
  }
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
    if (!bytes[byte] && is_of_utf8(byte)) {
      throw Error("grammar", "vocabulary", "a token for each byte of UTF-8", "none for byte " + std::to_string(byte));
    }
  }
}

void Vocabulary::build_mask() {
  everything_but_ends_.resize(mask_words());
  for (const auto* list : {&tokens_, &others_}) {
    for (const std::int32_t token : *list) {
      everything_but_ends_[static_cast<std::size_t>(token) / 32] |= 1U << static_cast<std::uint32_t>(token) % 32;
    }
  }
}

void Vocabulary::build_trie() {
  for (std::size_t token = 0; token < texts_.size(); ++token) {
    if (!texts_[token].empty()) tokens_.push_back(static_cast<std::int32_t>(token));
  }
  std::sort(tokens_.begin(), tokens_.end(), [&](std::int32_t a, std::int32_t b) { return text(a) < text(b); });
  std::vector<std::uint32_t> path;  // the nodes of the text before
  std::string_view before;
  const auto close = [&](std::size_t depth) {
    for (; path.size() > depth; path.pop_back()) nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
  };
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view now = text(tokens_[i]);
    longest_ = std::max(longest_, now.size());
    close(shared_beginning(before, now));
    while (path.size() < now.size()) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      const auto byte = static_cast<std::uint8_t>(now[path.size() - 1]);
      nodes_.push_back({byte, static_cast<std::uint32_t>(path.size()), 0, static_cast<std::uint32_t>(i)});
    }
    before = now;
  }
  close(0);
  nodes_.push_back({0, 0, 0, static_cast<std::uint32_t>(tokens_.size())});
}

}  // namespace thalweg::grammar
