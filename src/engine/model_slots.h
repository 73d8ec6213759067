#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/prefix_cache.h"
#include "text/tokenizer.h"
#include "thalweg/model.h"

namespace thalweg::engine {

// What the engine needs of a model beyond its public functions: parts of sequences as bytes.
class ModelSlots {
 public:
  explicit ModelSlots(Model& model) : model_(model) {}

  int slots() const;
  std::int64_t vocabulary() const;
  bool on_host() const;
  const text::Tokenizer* tokenizer() const;  // null: the model has none

  std::size_t block_bytes() const;       // keys and values of PrefixCache::kBlock tokens
  std::size_t checkpoint_bytes() const;  // the recurrent state

  // Differs between models, and between what may leave other bits of the same text: types, devices.
  std::uint64_t key() const;

  PrefixCache::Memory read_block(const Sequence& sequence, std::int64_t first_token) const;
  PrefixCache::Memory read_checkpoint(const Sequence& sequence) const;
  // Makes an empty sequence the beginning of `text` that the cache holds. There are no logits before more tokens run.
  void restore(Sequence& sequence, std::span<const std::int32_t> text, const PrefixCache::Hit& hit);

 private:
  Model& model_;
};

}  // namespace thalweg::engine
