#pragma once

// How values are written: JSON, or as raw text between tags.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "grammar/automaton.h"

namespace thalweg::grammar {

// Ranges of code points, ascending and apart.
using CharSet = std::vector<std::pair<char32_t, char32_t>>;

constexpr char32_t kLastCodePoint = 0x10ffff;

CharSet normalized(CharSet set);
CharSet complement(const CharSet& set);  // of a normalized set

enum class Spelling : std::uint8_t {
  kJson,  // the characters of a JSON string, each escaped only if it has to be
  kRaw,   // themselves; line feeds and other control characters but the tab cannot be written
};

// The rules that every grammar has, and what is built of them.
class TextRules {
 public:
  explicit TextRules(AutomatonBuilder& builder);

  AutomatonBuilder& builder() { return builder_; }

  StateId value(StateId next) { return builder_.call(value_, next); }    // any JSON
  StateId object(StateId next) { return builder_.call(object_, next); }  // any
  StateId array(StateId next) { return builder_.call(array_, next); }
  StateId string(StateId next, Bounds bounds = {}) { return builder_.call(string_, next, bounds); }
  StateId number(StateId next);
  StateId integer(StateId next);
  // Nothing, a space, or a line feed and indentation.
  StateId space(StateId next) { return builder_.call(space_, next); }
  // After the colon of a member.
  StateId gap(StateId next) { return builder_.maybe(builder_.byte(' ', ' ', next), next); }
  StateId digits(int least, int most, StateId next);

  StateId characters(const CharSet& set, Spelling spelling, StateId next);
  // A key and its quotes: any but those, which are in UTF-8.
  StateId key_except(const std::vector<std::string_view>& names, StateId next);

 private:
  StateId make_string();
  StateId make_space();
  StateId make_object();
  StateId make_array();
  StateId make_value();
  StateId any_escape(StateId next);
  StateId code_points(char32_t low, char32_t high, Spelling spelling, StateId next);
  StateId key_rest(std::span<const std::u32string_view> names, StateId any, StateId next);

  AutomatonBuilder& builder_;
  StateId value_;
  StateId string_;
  StateId space_;
  StateId object_;
  StateId array_;
  std::map<std::tuple<char32_t, char32_t, Spelling, StateId>, StateId> shared_;
};

}  // namespace thalweg::grammar
