#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thalweg::decode {

// Guesses how a text goes on: as it did after the longest earlier match of its last tokens. Positions with equal last
// three tokens are chained by hash, the latest first. Knows the last kWindow tokens at least, and twice as many at
// most: about 1 MB.
class Lookup {
 public:
  static constexpr std::size_t kWindow = 65536;

  Lookup();
  void add(std::span<const std::int32_t> tokens);
  // Replaces `drafts` by up to `most` tokens.
  void propose(std::size_t most, std::vector<std::int32_t>& drafts) const;

 private:
  static constexpr std::size_t kGram = 3;
  static constexpr std::size_t kHeads = std::size_t{1} << 14;
  static constexpr int kMostCandidates = 64;
  static constexpr std::size_t kLongestMatch = 64;

  void index(std::size_t position);
  // Of the texts that end at two positions, the second being the later; at most kLongestMatch tokens.
  std::size_t match(std::size_t first, std::size_t second) const;
  std::size_t hash(std::size_t position) const;  // of the gram that ends there

  std::vector<std::int32_t> text_;
  std::vector<std::int32_t> before_;  // by position: the one before it with the same hash, or -1
  std::vector<std::int32_t> latest_;  // by hash
};

}  // namespace thalweg::decode
