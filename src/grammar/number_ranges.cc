#include "grammar/number_ranges.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace thalweg::grammar {
namespace {

constexpr int kMostFraction = 18;

// Numerals of one length, leading zeros included.
StateId same_length(TextRules& rules, std::string_view low, std::string_view high, StateId next) {
  AutomatonBuilder& b = rules.builder();
  if (low.empty()) return next;
  const auto from = static_cast<unsigned char>(low.front());
  const auto to = static_cast<unsigned char>(high.front());
  const std::string_view low_rest = low.substr(1);
  const std::string_view high_rest = high.substr(1);
  if (from == to) return b.byte(from, from, same_length(rules, low_rest, high_rest, next));
  const auto digits = static_cast<int>(low_rest.size());
  const std::string zeros(low_rest.size(), '0');
  const std::string nines(low_rest.size(), '9');
  const bool whole_low = low_rest == zeros;
  const bool whole_high = high_rest == nines;
  const auto first_free = static_cast<unsigned char>(whole_low ? from : from + 1);
  const auto last_free = static_cast<unsigned char>(whole_high ? to : to - 1);
  StateId first = kNowhere;
  if (!whole_low) first = b.byte(from, from, same_length(rules, low_rest, nines, next));
  if (first_free <= last_free) {
    first = b.either(b.byte(first_free, last_free, rules.digits(digits, digits, next)), first);
  }
  if (!whole_high) first = b.either(b.byte(to, to, same_length(rules, zeros, high_rest, next)), first);
  return first;
}

StateId natural_range(TextRules& rules, std::int64_t low, std::int64_t high, StateId next) {
  StateId first = kNowhere;
  for (std::int64_t from = low; from <= high;) {
    const std::string begin = std::to_string(from);
    const std::int64_t to = std::min<std::int64_t>(high, std::stoll(std::string(begin.size(), '9')));
    first = rules.builder().either(same_length(rules, begin, std::to_string(to), next), first);
    from = to + 1;
  }
  return first;
}

// Without a sign.
StateId magnitude_range(TextRules& rules, NumberLimit low, NumberLimit high, StateId next) {
  AutomatonBuilder& b = rules.builder();
  const auto whole = [&](std::int64_t value, StateId then) { return b.text(std::to_string(value), then); };
  const StateId zero_fraction = b.maybe(b.text(".0", next), next);
  if (low.value == high.value) return low.exclusive || high.exclusive ? kNowhere : whole(low.value, zero_fraction);
  const StateId fraction = b.maybe(b.byte('.', '.', rules.digits(1, kMostFraction, next)), next);
  const std::int64_t first_whole = low.value + (low.exclusive ? 1 : 0);
  StateId first = natural_range(rules, first_whole, high.value - 1, fraction);
  if (low.exclusive) {
    const StateId some = b.byte('.', '.', rules.digits(0, kMostFraction - 1, b.byte('1', '9', next)));
    first = b.either(whole(low.value, some), first);
  }
  if (!high.exclusive) first = b.either(whole(high.value, zero_fraction), first);
  return first;
}

}  // namespace

StateId integer_range(TextRules& rules, std::int64_t low, std::int64_t high, StateId next) {
  StateId first = kNowhere;
  if (high >= 0) first = natural_range(rules, std::max<std::int64_t>(low, 0), high, next);
  if (low < 0) {
    const StateId negative = natural_range(rules, std::max<std::int64_t>(-high, 1), -low, next);
    first = rules.builder().either(rules.builder().byte('-', '-', negative), first);
  }
  return first;
}

StateId number_range(TextRules& rules, NumberLimit low, NumberLimit high, StateId next) {
  if (low.value > high.value) return kNowhere;
  AutomatonBuilder& b = rules.builder();
  StateId first = kNowhere;
  if (high.value >= 0) {
    first = magnitude_range(rules, low.value < 0 ? NumberLimit{} : low, high, next);
  }
  if (low.value < 0) {
    const NumberLimit least = high.value > 0 ? NumberLimit{} : NumberLimit{-high.value, high.exclusive};
    first = b.either(b.byte('-', '-', magnitude_range(rules, least, {-low.value, low.exclusive}, next)), first);
  }
  return first;
}

}  // namespace thalweg::grammar
