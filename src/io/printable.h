#pragma once

#include <string>
#include <string_view>

namespace thalweg::io {

// A name from a file, for a message: bytes that are not printable ASCII become \xNN, and long names are cut. Names in
// files may hold any bytes, including terminal control sequences.
std::string printable(std::string_view name);

}  // namespace thalweg::io
