#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace thalweg::text {

constexpr char32_t kReplacement = 0xFFFD;

// The start of a run of bytes: a character, or as many bytes as one U+FFFD replaces.
struct Utf8Step {
  char32_t code_point = kReplacement;
  std::size_t length = 0;
  bool valid = false;
  bool truncated = false;  // the bytes end within a sequence that is valid so far
};

// bytes is not empty. An invalid sequence ends before the first byte that cannot continue it, as in Python's
// bytes.decode('utf-8', errors='replace') and in Unicode's "maximal subpart".
Utf8Step decode_utf8(std::string_view bytes);

void append_utf8(std::string& text, char32_t code_point);

// Valid UTF-8, every invalid sequence replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace thalweg::text
