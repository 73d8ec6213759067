#include "io/printable.h"

namespace thalweg::io {

std::string printable(std::string_view name) {
  constexpr std::size_t kLongest = 100;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      text += c;
    } else {
      text += "\\x";
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  }
  if (name.size() > kLongest) text += "...";
  return text;
}

}  // namespace thalweg::io
