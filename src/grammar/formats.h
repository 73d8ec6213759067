#pragma once

#include <string>
#include <string_view>

namespace thalweg::grammar {

// The pattern of a format's texts; empty for what the standard does not define, which is an annotation. Throws Error
// for formats of the standard that are not supported.
std::string_view pattern_of_format(std::string_view format, const std::string& path);

}  // namespace thalweg::grammar
