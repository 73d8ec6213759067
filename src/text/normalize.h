#pragma once

#include <string>
#include <string_view>

namespace thalweg::text {

// Unicode's normalization form C of valid UTF-8. Takes linear time but for the sorting of combining marks, which is
// n log n: a file of a million accents is no trap.
std::string nfc(std::string_view text);

}  // namespace thalweg::text
