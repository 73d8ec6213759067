#pragma once

#include <string>

namespace thalweg::io {

// Where writing to `path` would end: symbolic links followed, also ones that lead to no file yet. Throws Error for a
// chain of more than 40. A name for an open file of the process (/dev/stdout, /dev/fd/3) ends at /proc/self/fd, even
// where that file has a name of its own.
std::string resolve_links(const std::string& path);

// Whether resolve_links() ended at an open file of the process.
bool is_open_file(const std::string& resolved);

// Whether both are there and are one file, by whatever names and links.
bool same_file(const std::string& a, const std::string& b);

}  // namespace thalweg::io
