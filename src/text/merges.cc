#include "text/merges.h"

#include <algorithm>
#include <bit>

namespace thalweg::text {
namespace {

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

std::size_t index(std::int32_t position) { return static_cast<std::size_t>(position); }

// The heap's order: the lowest rank on top, of equal ones the leftmost.
bool later(const Merges::Scratch::Candidate& a, const Merges::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

Merges::Merges(std::span<const Merge> merges) : slots_(std::bit_ceil(2 * merges.size() + 2)) {
  std::uint32_t rank = 0;
  for (const Merge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    slots_[slot_of(pair)] = {pair, rank++, merge.merged};
  }
}

std::size_t Merges::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  std::uint64_t hash = pair * 0x9E3779B97F4A7C15U;
  hash ^= hash >> 32;
  std::size_t i = static_cast<std::size_t>(hash) & mask;
  while (slots_[i].pair != pair && slots_[i].pair != kFree) i = (i + 1) & mask;
  return i;
}

const Merges::Slot* Merges::find(std::int32_t left, std::int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_of(left, right))];
  return slot.pair == kFree ? nullptr : &slot;
}

void Merges::consider(std::int32_t position, Scratch& scratch) const {
  const Scratch::Symbol& symbol = scratch.symbols[index(position)];
  if (symbol.next < 0) return;
  const Slot* slot = find(symbol.id, scratch.symbols[index(symbol.next)].id);
  if (slot == nullptr) return;
  scratch.heap.push_back({slot->rank, position, slot->merged});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

void Merges::apply(std::span<const std::int32_t> word, Scratch& scratch, std::vector<std::int32_t>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<std::int32_t>(word.size());
  for (std::int32_t i = 0; i < count; ++i) {
    symbols.push_back({word[index(i)], i - 1, i + 1 < count ? i + 1 : -1, false});
  }
  for (std::int32_t i = 0; i < count; ++i) consider(i, scratch);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[index(top.position)];
    if (left.gone || left.next < 0) continue;
    // A neighbor may have changed since. Only the result is compared, as in Hugging Face's package: a candidate keeps
    // its rank when another pair at its position gives the same token.
    Scratch::Symbol& right = symbols[index(left.next)];
    const Slot* slot = find(left.id, right.id);
    if (slot == nullptr || slot->merged != top.merged) continue;

    left.id = top.merged;
    left.next = right.next;
    right.gone = true;
    if (left.next >= 0) symbols[index(left.next)].previous = top.position;
    if (left.previous >= 0) consider(left.previous, scratch);
    consider(top.position, scratch);
  }

  for (std::int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[index(i)].next) out.push_back(symbols[index(i)].id);
}

}  // namespace thalweg::text
