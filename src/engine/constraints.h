#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "engine/model_slots.h"
#include "grammar/masks.h"
#include "thalweg/engine.h"
#include "thalweg/grammar.h"

namespace thalweg::engine {

// Makes the constraints of an engine's requests. Any thread may call it.
class Constraints {
 public:
  Constraints(const Model& model, const ModelSlots& slots) : model_(model), slots_(slots) {}

  std::unique_ptr<TokenConstraint> make(const Grammar& grammar, bool after_thoughts);
  std::unique_ptr<TokenConstraint> limit_thoughts(std::int64_t tokens, std::unique_ptr<TokenConstraint> then) const;

 private:
  const text::Tokenizer& tokenizer() const;
  std::int32_t end_of_thoughts(const char* argument) const;
  std::shared_ptr<const grammar::Vocabulary> vocabulary();
  std::shared_ptr<grammar::MaskCache> cache_of(const Grammar& grammar);

  const Model& model_;
  const ModelSlots& slots_;
  std::mutex mutex_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;  // none before the first constraint
  std::list<std::shared_ptr<grammar::MaskCache>> caches_;  // the latest first
};

}  // namespace thalweg::engine
