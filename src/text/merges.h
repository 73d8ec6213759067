#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace thalweg::text {

// The merges of byte-pair encoding: which two adjacent tokens become one, the earliest of the list first.
class Merges {
 public:
  struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t merged;
  };
  // For a pair that is listed twice the later entry is used.
  explicit Merges(std::span<const Merge> merges);

  // Scratch memory of apply(), reused from word to word.
  struct Scratch {
    struct Symbol {
      std::int32_t id;
      std::int32_t previous;
      std::int32_t next;  // -1: none
      bool gone;
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t position;
      std::int32_t merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Merges the tokens of one word and appends the result to out: n log n in the length of the word, at most 2^31 - 1.
  void apply(std::span<const std::int32_t> word, Scratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  struct Slot {
    std::uint64_t pair = kFree;
    std::uint32_t rank = 0;
    std::int32_t merged = -1;
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  const Slot* find(std::int32_t left, std::int32_t right) const;  // nullptr: no such merge
  std::size_t slot_of(std::uint64_t pair) const;
  void consider(std::int32_t position, Scratch& scratch) const;

  std::vector<Slot> slots_;  // open addressing, a power of two, half empty
};

}  // namespace thalweg::text
