#pragma once

#include <string_view>

namespace thalweg::text {

// Without the blanks at both ends, those of Python's str.strip(), as the templates' trim.
std::string_view strip(std::string_view text);

// Without the line breaks at the beginning, at the end, at both ends.
std::string_view strip_breaks_before(std::string_view text);
std::string_view strip_breaks_behind(std::string_view text);
std::string_view strip_breaks(std::string_view text);

}  // namespace thalweg::text
