#pragma once

#include <cstdint>

#include "grammar/text_rules.h"

namespace thalweg::grammar {

constexpr std::int64_t kGreatestInteger = 999'999'999'999'999'999;  // of 18 digits

struct NumberLimit {
  std::int64_t value = 0;
  bool exclusive = false;
};

// Integers from low to high, at most kGreatestInteger from 0.
StateId integer_range(TextRules& rules, std::int64_t low, std::int64_t high, StateId next);

// Numbers within limits, with or without a fraction, without an exponent.
StateId number_range(TextRules& rules, NumberLimit low, NumberLimit high, StateId next);

}  // namespace thalweg::grammar
