#pragma once

#include <string>
#include <string_view>

namespace thalweg::text {

// Normalization form C of valid UTF-8, with the marks and compositions of Unicode 9. Takes linear time, except for
// sorting marks, which takes n log n.
std::string nfc(std::string_view text);

}  // namespace thalweg::text
