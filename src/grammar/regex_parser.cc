#include "grammar/regex_parser.h"

#include <utility>

#include "grammar/code_points.h"
#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

constexpr std::size_t kMostPattern = 4096;  // characters
constexpr int kMostDepth = 50;
constexpr std::uint32_t kMostCount = 10000;

const CharSet kDigits = {{U'0', U'9'}};
const CharSet kWord = {{U'0', U'9'}, {U'A', U'Z'}, {U'_', U'_'}, {U'a', U'z'}};
// White space and line terminators of ECMA-262.
const CharSet kSpace = {{U'\t', U'\r'},   {U' ', U' '},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CharSet kLineEnds = {{U'\n', U'\n'}, {U'\r', U'\r'}, {0x2028, 0x2029}};

RegexNode set_node(CharSet set) { return {RegexNode::Kind::kSet, std::move(set), {}}; }

RegexNode anything() {
  return {RegexNode::Kind::kRepeat, {}, {set_node({{0, kLastCodePoint}})}, 0, Bounds::kUnlimited};
}

bool is_digit(char32_t c) { return c >= U'0' && c <= U'9'; }

}  // namespace

RegexParser::RegexParser(std::string_view pattern, std::string_view path)
    : text_(code_points_of(pattern)), pattern_(text_), path_(path) {
  if (pattern_.size() > kMostPattern) {
    throw Error("json_schema", path_, "a pattern of at most " + std::to_string(kMostPattern) + " characters",
                std::to_string(pattern_.size()));
  }
}

void RegexParser::refuse(const std::string& what) const {
  throw Error("json_schema", path_,
              "a pattern of characters, classes, groups, alternatives, repetitions, and anchors at its ends",
              what + " at character " + std::to_string(position_));
}

bool RegexParser::take(char32_t c) {
  if (at_end() || pattern_[position_] != c) return false;
  ++position_;
  return true;
}

char32_t RegexParser::next() {
  if (at_end()) refuse("its end");
  return pattern_[position_++];
}

RegexNode RegexParser::parse() {
  RegexNode node = alternatives(true);
  if (!at_end()) refuse("a parenthesis too many");
  return node;
}

RegexNode RegexParser::alternatives(bool outermost) {
  if (++depth_ > kMostDepth) refuse("groups in more than " + std::to_string(kMostDepth) + " levels");
  RegexNode node = {RegexNode::Kind::kAlternatives, {}, {}};
  do {
    node.children.push_back(sequence(outermost));
  } while (take(U'|'));
  --depth_;
  return node;
}

RegexNode RegexParser::sequence(bool outermost) {
  RegexNode node;
  if (outermost && !take(U'^')) node.children.push_back(anything());
  bool anchored = false;
  while (!at_end() && !looking_at(U"|") && !looking_at(U")")) {
    if (anchored) refuse("text behind $");
    anchored = outermost && take(U'$');
    if (!anchored) node.children.push_back(repeated(atom()));
  }
  if (outermost && !anchored) node.children.push_back(anything());
  return node;
}

RegexNode RegexParser::atom() {
  const char32_t c = next();
  switch (c) {
    case U'(':
      return group();
    case U'[':
      return set_node(bracketed());
    case U'.':
      return set_node(complement(kLineEnds));
    case U'\\':
      return set_node(escape(false));
    case U'^':
    case U'$':
      refuse("an anchor");
    case U'*':
    case U'+':
    case U'?':
      refuse("a repetition of nothing");
    default:
      return set_node({{c, c}});
  }
}

RegexNode RegexParser::group() {
  if (take(U'?')) {
    if (!take(U':')) refuse("(?");
  }
  RegexNode node = alternatives(false);
  if (!take(U')')) refuse("an open group");
  return node;
}

RegexNode RegexParser::repeated(RegexNode node) {
  RegexNode repeat = {RegexNode::Kind::kRepeat, {}, {}};
  if (take(U'*')) {
    repeat.least = 0;
    repeat.most = Bounds::kUnlimited;
  } else if (take(U'+')) {
    repeat.most = Bounds::kUnlimited;
  } else if (take(U'?')) {
    repeat.least = 0;
  } else if (!take_counts(repeat)) {
    return node;
  }
  take(U'?');  // that it prefers fewer makes no difference to what matches
  if (looking_at(U"*") || looking_at(U"+") || looking_at(U"?")) refuse("a repetition of a repetition");
  repeat.children.push_back(std::move(node));
  return repeat;
}

bool RegexParser::take_counts(RegexNode& node) {
  if (!take(U'{')) return false;
  node.least = number();
  node.most = node.least;
  if (take(U',')) node.most = looking_at(U"}") ? Bounds::kUnlimited : number();
  if (!take(U'}') || node.least > node.most) refuse("wrong counts");
  return true;
}

std::uint32_t RegexParser::number() {
  std::uint32_t value = 0;
  if (at_end() || !is_digit(pattern_[position_])) refuse("no count");
  while (!at_end() && is_digit(pattern_[position_])) {
    value = value * 10 + static_cast<std::uint32_t>(next() - U'0');
    if (value > kMostCount) refuse("a count above " + std::to_string(kMostCount));
  }
  return value;
}

CharSet RegexParser::bracketed() {
  const bool negated = take(U'^');
  CharSet set;
  while (!take(U']')) {
    const CharSet low = bracketed_char();
    const bool is_char = low.size() == 1 && low.front().first == low.front().second;
    if (is_char && looking_at(U"-") && !looking_at(U"-]")) {
      ++position_;
      const CharSet high = bracketed_char();
      const bool is_range = high.size() == 1 && high.front().first == high.front().second;
      if (!is_range || high.front().first < low.front().first) refuse("a wrong range");
      set.emplace_back(low.front().first, high.front().first);
    } else {
      set.insert(set.end(), low.begin(), low.end());
    }
  }
  set = normalized(std::move(set));
  return negated ? complement(set) : set;
}

CharSet RegexParser::bracketed_char() {
  const char32_t c = next();
  return c == U'\\' ? escape(true) : CharSet{{c, c}};
}

CharSet RegexParser::escape(bool in_brackets) {
  const char32_t c = next();
  const auto one = [](char32_t is) { return CharSet{{is, is}}; };
  switch (c) {
    case U'd':
      return kDigits;
    case U'D':
      return complement(kDigits);
    case U'w':
      return kWord;
    case U'W':
      return complement(kWord);
    case U's':
      return kSpace;
    case U'S':
      return complement(kSpace);
    case U't':
      return one(U'\t');
    case U'n':
      return one(U'\n');
    case U'v':
      return one(U'\v');
    case U'f':
      return one(U'\f');
    case U'r':
      return one(U'\r');
    case U'b':
      if (in_brackets) return one(U'\b');
      break;
    case U'x':
      return one(hex(2));
    case U'u':
      return one(hex(4));
    default:
      if (c < 0x80 && !is_digit(c) && !(c >= U'A' && c <= U'Z') && !(c >= U'a' && c <= U'z')) return one(c);
      break;
  }
  refuse("an escape that is not known");
}

char32_t RegexParser::hex(int digits) {
  constexpr std::u32string_view kDigitsOfHex = U"0123456789abcdef";
  char32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char32_t c = next();
    const std::size_t found = kDigitsOfHex.find(c >= U'A' && c <= U'F' ? c - U'A' + U'a' : c);
    if (found == std::u32string_view::npos) refuse("a wrong escape");
    value = value * 16 + static_cast<char32_t>(found);
  }
  return value;
}

}  // namespace thalweg::grammar
