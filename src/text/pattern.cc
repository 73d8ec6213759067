// Translates Oniguruma's syntax to PCRE2's, where both have the same meaning, and refuses the rest.

#include <array>

#include "text/pre_tokenizer.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

// Unicode's White_Space. PCRE2's \s also has U+180E, which Unicode removed.
constexpr std::string_view kSpaces =
    "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";

bool is_alphanumeric(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f'); }

class Translation {
 public:
  explicit Translation(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\') {
        escape();
      } else if (in_class_) {
        class_character();
      } else {
        character();
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error("tokenizer", "pre_tokenizer", "a regular expression of groups, classes, \\s, \\p and the like",
                "'" + std::string(in_.substr(at_, 8)) + "' in '" + std::string(in_.substr(0, 200)) + "'");
  }
  char peek(std::size_t offset) const { return at_ + offset < in_.size() ? in_[at_ + offset] : '\0'; }
  void copy(std::size_t count) {
    out_.append(in_, at_, count);
    at_ += count;
  }

  // \p{Name}, \x{123}: through the closing brace.
  void copy_braces(bool (*allowed)(char)) {
    std::size_t end = 3;
    while (allowed(peek(end))) ++end;
    if (peek(2) != '{' || end == 3 || peek(end) != '}') refuse();
    copy(end + 1);
  }

  void escape() {
    const char c = peek(1);
    if (c == 's' || c == 'S') {
      if (in_class_ && c == 'S') refuse();
      if (!in_class_) out_ += c == 's' ? "[" : "[^";
      out_ += kSpaces;
      if (!in_class_) out_ += "]";
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      copy_braces([](char letter) { return is_alphanumeric(letter) || letter == '_'; });
    } else if (c == 'x') {
      copy_braces(is_hex);
    } else if (c == 'u') {
      for (std::size_t i = 2; i < 6; ++i) {
        if (!is_hex(peek(i))) refuse();
      }
      out_.append("\\x{").append(in_, at_ + 2, 4).append("}");
      at_ += 6;
    } else if (std::string_view("rntfdD").find(c) != std::string_view::npos ||
               (c > ' ' && c < 0x7F && !is_alphanumeric(c))) {
      copy(2);
    } else {
      refuse();
    }
  }

  void class_character() {
    const char c = in_[at_];
    if (c == '[' || (c == '&' && peek(1) == '&')) refuse();  // sets within sets
    in_class_ = c != ']';
    copy(1);
  }

  void character() {
    const char c = in_[at_];
    if (c == '^' || c == '$') refuse();        // of lines there, of the text here
    if (c == '}' && peek(1) == '+') refuse();  // a repeated repeat there, possessive here
    if (c == '(' && peek(1) == '*') refuse();  // verbs
    if (c == '(' && peek(1) == '?') return group();
    if (c == '[') {
      in_class_ = true;
      copy(peek(1) == '^' ? 2 : 1);
      if (peek(0) == ']') refuse();
      return;
    }
    copy(1);
  }

  void group() {
    constexpr std::array<std::string_view, 7> kOpenings = {"(?i:", "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    for (const std::string_view opening : kOpenings) {
      if (in_.substr(at_, opening.size()) == opening) return copy(opening.size());
    }
    refuse();
  }

  std::string_view in_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Translation(pattern).run(); }

std::string_view pre_tokenizer_pattern(std::string_view name) {
  if (name == "qwen2") {
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
           R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  }
  if (name == "qwen35") {
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
           R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  }
  if (name == "gpt-2") {
    return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  }
  return {};
}

}  // namespace thalweg::text
