#pragma once

#include <string>
#include <string_view>

namespace thalweg::io {

// A name from a file, fit for a message: bytes that are not printable ASCII become \xNN, long names are cut. Names in
// files may hold any bytes, terminal controls among them.
std::string printable(std::string_view name);

}  // namespace thalweg::io
