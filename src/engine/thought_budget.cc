#include "engine/thought_budget.h"

#include <cstddef>
#include <utility>

namespace thalweg::engine {
namespace {

constexpr std::int64_t kBits = 32;

}  // namespace

ThoughtBudget::ThoughtBudget(std::int64_t tokens, std::int32_t end, std::int64_t vocabulary,
                             std::unique_ptr<TokenConstraint> then)
    : left_(tokens),
      end_(end),
      then_(std::move(then)),
      all_(static_cast<std::size_t>((vocabulary + kBits - 1) / kBits), ~0U),
      end_alone_(all_.size(), 0) {
  if (vocabulary % kBits != 0) all_.back() = (1U << (vocabulary % kBits)) - 1;
  end_alone_[static_cast<std::size_t>(end / kBits)] = 1U << (end % kBits);
}

std::span<const std::uint32_t> ThoughtBudget::allowed() {
  if (thinking_ && left_ == 0) return end_alone_;
  return then_ ? then_->allowed() : all_;
}

void ThoughtBudget::accept(std::int32_t token) {
  if (then_) then_->accept(token);
  if (!thinking_) return;
  if (token == end_) {
    thinking_ = false;
  } else {
    --left_;
  }
}

}  // namespace thalweg::engine
