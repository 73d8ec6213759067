#include "text/strip.h"

#include <algorithm>

#include "text/utf8.h"

namespace thalweg::text {
namespace {

bool is_blank(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace

std::string_view strip(std::string_view text) {
  std::size_t first = text.size();
  std::size_t last = text.size();
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (!is_blank(step.code_point)) {
      first = std::min(first, at);
      last = at + step.length;
    }
    at += step.length;
  }
  return text.substr(first, last - first);
}

std::string_view strip_breaks_before(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view strip_breaks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);  // npos + 1 is 0
}

std::string_view strip_breaks(std::string_view text) { return strip_breaks_before(strip_breaks_behind(text)); }

}  // namespace thalweg::text
