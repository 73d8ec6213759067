#include "grammar/text_rules.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "grammar/code_points.h"

namespace thalweg::grammar {
namespace {

constexpr char32_t kLastAscii = 0x7f;
// Digits that no reader loses or refuses: a number of both parts and the exponent is below 1e118.
constexpr int kMostDigits = 18;
constexpr int kMostExponentDigits = 2;
constexpr int kMostIndentation = 32;

// Of a character that JSON does not let stand for itself.
std::string escape_of(char32_t c) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  const std::size_t found = kShort.find(static_cast<char>(c));
  if (found != std::string_view::npos) return {'\\', kLetters[found]};
  return {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
}

}  // namespace

CharSet normalized(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet result;
  for (const auto& [low, high] : set) {
    if (low > high) continue;
    if (!result.empty() && low <= result.back().second + 1) {
      result.back().second = std::max(result.back().second, high);
    } else {
      result.emplace_back(low, high);
    }
  }
  return result;
}

CharSet complement(const CharSet& set) {
  CharSet result;
  char32_t first = 0;
  for (const auto& [low, high] : set) {
    if (low > first) result.emplace_back(first, low - 1);
    first = high + 1;
  }
  if (first <= kLastCodePoint) result.emplace_back(first, kLastCodePoint);
  return result;
}

TextRules::TextRules(AutomatonBuilder& builder)
    : builder_(builder),
      value_(builder.reserve()),
      string_(make_string()),
      space_(make_space()),
      object_(make_object()),
      array_(make_array()) {
  builder.define(value_, make_value());
}

StateId TextRules::digits(int least, int most, StateId next) {
  StateId first = next;
  for (int count = most; count > 0; --count) {
    first = builder_.byte('0', '9', first);
    if (count > least) first = builder_.either(first, next);
  }
  return first;
}

StateId TextRules::integer(StateId next) {
  const StateId positive = builder_.byte('1', '9', digits(0, kMostDigits - 1, next));
  const StateId any = builder_.either(builder_.byte('0', '0', next), positive);
  return builder_.maybe(builder_.byte('-', '-', any), any);
}

StateId TextRules::number(StateId next) {
  const StateId power = digits(1, kMostExponentDigits, next);
  const StateId exponent = builder_.bytes("eE", builder_.maybe(builder_.bytes("+-", power), power));
  const StateId after_fraction = builder_.maybe(exponent, next);
  const StateId fraction = builder_.byte('.', '.', digits(1, kMostDigits, after_fraction));
  return integer(builder_.maybe(fraction, after_fraction));
}

StateId TextRules::any_escape(StateId next) {
  AutomatonBuilder& b = builder_;
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  const auto hex = [&](int count) {
    StateId first = next;
    for (; count > 0; --count) first = b.bytes(kHex, first);
    return first;
  };
  const StateId low_surrogate = b.text("\\u", b.bytes("dD", b.bytes("cdefCDEF", hex(2))));
  const StateId high_surrogate = b.bytes("89abAB", b.bytes(kHex, b.bytes(kHex, low_surrogate)));
  const StateId after_d = b.either(b.byte('0', '7', hex(2)), high_surrogate);
  const StateId four = b.either(b.bytes("0123456789abcefABCEF", hex(3)), b.bytes("dD", after_d));
  return b.byte('\\', '\\', b.either(b.bytes("\"\\/bfnrt", next), b.byte('u', 'u', four)));
}

StateId TextRules::make_string() {
  AutomatonBuilder& b = builder_;
  const StateId next = b.reserve();
  StateId one = any_escape(next);
  for (const auto& [low, high] : {std::pair{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7f}}) {
    one = b.either(b.byte(static_cast<unsigned char>(low), static_cast<unsigned char>(high), next), one);
  }
  one = b.either(one, b.utf8(kLastAscii + 1, kLastCodePoint, next));
  b.define(next, b.either(b.character(one), b.enough(b.byte('"', '"', kRuleEnd))));
  return b.byte('"', '"', next);
}

StateId TextRules::make_space() {
  StateId indentation = kRuleEnd;
  for (int i = 0; i < kMostIndentation; ++i) indentation = builder_.maybe(builder_.bytes(" \t", indentation), kRuleEnd);
  const StateId line = builder_.byte('\n', '\n', indentation);
  return builder_.maybe(builder_.either(builder_.byte(' ', ' ', kRuleEnd), line), kRuleEnd);
}

StateId TextRules::make_object() {
  AutomatonBuilder& b = builder_;
  const StateId close = b.byte('}', '}', kRuleEnd);
  const StateId after = b.reserve();
  const StateId member = string(b.byte(':', ':', gap(value(after))));
  b.define(after, b.either(b.byte(',', ',', space(member)), space(close)));
  return b.byte('{', '{', space(b.either(member, close)));
}

StateId TextRules::make_array() {
  AutomatonBuilder& b = builder_;
  const StateId close = b.byte(']', ']', kRuleEnd);
  const StateId after = b.reserve();
  const StateId item = value(after);
  b.define(after, b.either(b.byte(',', ',', space(item)), space(close)));
  return b.byte('[', '[', space(b.either(item, close)));
}

StateId TextRules::make_value() {
  AutomatonBuilder& b = builder_;
  constexpr std::array<std::string_view, 3> kWords = {"false", "null", "true"};
  const StateId scalar = b.either(b.one_of(kWords, kRuleEnd), b.either(number(kRuleEnd), string(kRuleEnd)));
  return b.either(scalar, b.either(object(kRuleEnd), array(kRuleEnd)));
}

StateId TextRules::characters(const CharSet& set, Spelling spelling, StateId next) {
  StateId first = kNowhere;
  for (const auto& [low, high] : set) first = builder_.either(code_points(low, high, spelling, next), first);
  return first;
}

// Equal ranges that lead to the same state are one fragment: classes of patterns are mostly the same few.
StateId TextRules::code_points(char32_t low, char32_t high, Spelling spelling, StateId next) {
  if (low > high) return kNowhere;
  for (const char32_t last : {char32_t{0x1f}, kLastAscii}) {
    if (low <= last && high > last) {
      return builder_.either(code_points(low, last, spelling, next), code_points(last + 1, high, spelling, next));
    }
  }
  const auto [found, is_new] = shared_.try_emplace({low, high, spelling, next}, kNowhere);
  if (!is_new) return found->second;
  StateId first = kNowhere;
  if (spelling == Spelling::kRaw) {
    if (low > 0x1f) first = builder_.utf8(low, high, next);
    if (low <= U'\t' && U'\t' <= high) first = builder_.byte('\t', '\t', next);
  } else {
    char32_t from = low;
    for (char32_t c = low; c <= std::min(high, kLastAscii); ++c) {
      if (c > 0x1f && c != U'"' && c != U'\\') continue;
      if (c > from) first = builder_.either(builder_.utf8(from, c - 1, next), first);
      first = builder_.either(builder_.text(escape_of(c), next), first);
      from = c + 1;
    }
    if (from <= high) first = builder_.either(builder_.utf8(from, high, next), first);
  }
  return shared_[{low, high, spelling, next}] = first;
}

StateId TextRules::key_except(const std::vector<std::string_view>& names, StateId next) {
  std::vector<std::u32string> texts;
  for (const std::string_view name : names) texts.push_back(code_points_of(name));
  std::sort(texts.begin(), texts.end());
  const std::vector<std::u32string_view> views(texts.begin(), texts.end());
  const StateId any = builder_.reserve();
  const StateId quote = builder_.byte('"', '"', next);
  builder_.define(any, builder_.either(characters({{0, kLastCodePoint}}, Spelling::kJson, any), quote));
  return builder_.byte('"', '"', key_rest(views, any, quote));
}

// `names`: what is left of those that begin as the key does so far.
StateId TextRules::key_rest(std::span<const std::u32string_view> names, StateId any, StateId next) {
  const bool is_name = !names.empty() && names.front().empty();
  StateId first = is_name ? kNowhere : next;
  CharSet begins;
  std::vector<std::u32string_view> rests;
  for (std::size_t i = is_name ? 1 : 0; i < names.size();) {
    const char32_t c = names[i].front();
    rests.clear();
    for (; i < names.size() && names[i].front() == c; ++i) rests.push_back(names[i].substr(1));
    begins.emplace_back(c, c);
    const StateId rest = key_rest(std::vector(rests), any, next);
    first = builder_.either(characters({{c, c}}, Spelling::kJson, rest), first);
  }
  return builder_.either(characters(complement(normalized(begins)), Spelling::kJson, any), first);
}

}  // namespace thalweg::grammar
