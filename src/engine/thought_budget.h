#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "thalweg/engine.h"

namespace thalweg::engine {

// Ends thoughts that have had their tokens, then follows another constraint, if there is one.
class ThoughtBudget : public TokenConstraint {
 public:
  // `end`: the token that ends thoughts.
  ThoughtBudget(std::int64_t tokens, std::int32_t end, std::int64_t vocabulary, std::unique_ptr<TokenConstraint> then);

  std::span<const std::uint32_t> allowed() override;
  void accept(std::int32_t token) override;

 private:
  std::int64_t left_;
  const std::int32_t end_;
  bool thinking_ = true;
  const std::unique_ptr<TokenConstraint> then_;
  std::vector<std::uint32_t> all_;  // masks
  std::vector<std::uint32_t> end_alone_;
};

}  // namespace thalweg::engine
