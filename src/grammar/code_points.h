#pragma once

#include <string>
#include <string_view>

namespace thalweg::grammar {

// Of valid UTF-8.
inline std::u32string code_points_of(std::string_view text) {
  std::u32string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      result.push_back(byte);
    } else if (byte >= 0xc0) {
      result.push_back(byte & (byte < 0xe0 ? 0x1fU : byte < 0xf0 ? 0x0fU : 0x07U));
    } else {
      result.back() = result.back() << 6 | (byte & 0x3fU);
    }
  }
  return result;
}

}  // namespace thalweg::grammar
