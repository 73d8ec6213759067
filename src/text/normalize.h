#pragma once

#include <string>
#include <string_view>

namespace thalweg::text {

// Normalization form C of valid UTF-8, with the marks and compositions that Unicode 9 knows. Takes linear time but for
// the sorting of marks, which is n log n: a file of a million accents is no trap.
std::string nfc(std::string_view text);

}  // namespace thalweg::text
