#pragma once

#include <cstddef>
#include <string_view>

namespace thalweg::model {

// Bytes at the end of `text` that begin a UTF-8 character which more bytes could complete: 0 to 3.
inline std::size_t unfinished_tail(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80U) continue;
    const std::size_t length = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace thalweg::model
