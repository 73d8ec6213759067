#include "decode/batch.h"

#include <algorithm>

#include "core/arena.h"

namespace thalweg::decode {
namespace {

std::int64_t padded(std::int64_t count) {
  return static_cast<std::int64_t>(Arena::bytes_of<std::int32_t>(count) / sizeof(std::int32_t));
}

}  // namespace

Batch::Batch(const Runtime& runtime, std::int64_t most_tokens, std::int64_t most_sequences)
    : runtime_(runtime),
      memory_(runtime.device(), static_cast<std::size_t>(3 * padded(most_tokens) + padded(most_sequences + 1) +
                                                         3 * padded(most_sequences)) *
                                    sizeof(std::int32_t)) {
  clear();
}

void Batch::clear() {
  for (auto* values : {&tokens_, &positions_, &slots_, &lengths_, &rows_, &replays_}) values->clear();
  cu_seqlens_.assign(1, 0);
  most_drafts_ = 0;
}

void Batch::add(int slot, std::int64_t seen, std::span<const std::int32_t> tokens, std::int64_t replayed) {
  for (const std::int32_t token : tokens) {
    tokens_.push_back(token);
    positions_.push_back(static_cast<std::int32_t>(seen++));
  }
  most_drafts_ = std::max({most_drafts_, replayed, static_cast<std::int64_t>(tokens.size()) - 1});
  slots_.push_back(slot);
  replays_.push_back(static_cast<std::int32_t>(replayed));
  lengths_.push_back(static_cast<std::int32_t>(seen));
  cu_seqlens_.push_back(static_cast<std::int32_t>(tokens_.size()));
}

void Batch::fill(std::int64_t tokens, std::int64_t sequences) {
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens), 0);
  clear();
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int64_t begin = tokens * n / sequences;
    const std::int64_t end = tokens * (n + 1) / sequences;
    add(static_cast<int>(n), 0,
        std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  }
}

void Batch::upload() {
  staged_.clear();
  auto* base = static_cast<std::int32_t*>(memory_.data());
  std::size_t i = 0;
  for (const auto* values : {&tokens_, &positions_, &cu_seqlens_, &slots_, &lengths_, &rows_, &replays_}) {
    const auto count = static_cast<std::int64_t>(values->size());
    views_[i++] = Tensor(base + staged_.size(), DType::kI32, {count}, runtime_.device());
    const std::size_t begin = staged_.size();
    staged_.resize(begin + static_cast<std::size_t>(padded(count)));
    std::copy(values->begin(), values->end(), staged_.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  runtime_.upload(memory_.data(), staged_.data(), staged_.size() * sizeof(std::int32_t));
}

}  // namespace thalweg::decode
