#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace thalweg::text {

// Finds whole tokens in text, such as <|im_end|>: the leftmost, and of those that start there the longest.
class TokenMatcher {
 public:
  struct Match {
    std::int32_t id = -1;    // -1: none
    std::size_t length = 0;  // bytes
  };

  void add(std::string_view token, std::int32_t id);
  bool empty() const { return next_.empty(); }
  Match at(std::string_view text) const;  // at the start of text

 private:
  std::array<bool, 256> starts_{};
  std::vector<std::int32_t> ids_ = {-1};                 // of the nodes of a trie; 0 is the root
  std::unordered_map<std::uint64_t, std::size_t> next_;  // (node, byte) -> node
};

}  // namespace thalweg::text
