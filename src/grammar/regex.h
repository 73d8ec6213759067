#pragma once

// The regular part of ECMA-262's patterns, which JSON Schema's `pattern` is written in.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/text_rules.h"

namespace thalweg::grammar {

struct RegexNode {
  enum class Kind : std::uint8_t { kSet, kSequence, kAlternatives, kRepeat };

  Kind kind = Kind::kSequence;
  CharSet set;
  std::vector<RegexNode> children;
  std::uint32_t least = 1;  // of kRepeat
  std::uint32_t most = 1;
};

class Regex {
 public:
  // Throws Error, in which `path` names the keyword, for what is not regular or not known. As the standard says, a
  // pattern without anchors may match anywhere.
  Regex(std::string_view pattern, std::string_view path);

  StateId build(TextRules& rules, Spelling spelling, StateId next) const;
  // How many characters its texts have: Bounds::kUnlimited, or less.
  Bounds lengths() const;

 private:
  RegexNode root_;
  std::string path_;
};

}  // namespace thalweg::grammar
