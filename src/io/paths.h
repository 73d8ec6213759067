#pragma once

#include <string>

namespace thalweg::io {

// Where writing to `path` would end: symbolic links followed, also ones that lead to no file yet. Throws Error for a
// chain of more than 40.
std::string resolve_links(const std::string& path);

// Whether both are there and are one file, by whatever names and links.
bool same_file(const std::string& a, const std::string& b);

}  // namespace thalweg::io
