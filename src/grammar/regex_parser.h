#pragma once

#include <string>
#include <string_view>

#include "grammar/regex.h"

namespace thalweg::grammar {

class RegexParser {
 public:
  RegexParser(std::string_view pattern, std::string_view path);

  RegexNode parse();

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  bool at_end() const { return position_ == pattern_.size(); }
  bool looking_at(std::u32string_view text) const { return pattern_.substr(position_).starts_with(text); }
  bool take(char32_t c);
  char32_t next();

  RegexNode alternatives(bool outermost);
  RegexNode sequence(bool outermost);
  RegexNode atom();
  RegexNode group();
  RegexNode repeated(RegexNode node);
  bool take_counts(RegexNode& node);
  std::uint32_t number();
  CharSet bracketed();
  CharSet bracketed_char();
  CharSet escape(bool in_brackets);
  char32_t hex(int digits);

  std::u32string text_;
  std::u32string_view pattern_;
  std::string path_;
  std::size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace thalweg::grammar
