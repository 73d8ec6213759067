#include "io/paths.h"

#include <filesystem>
#include <system_error>

#include "thalweg/error.h"

namespace thalweg::io {

std::string resolve_links(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMostLinks = 40;  // as Linux
  fs::path at(path);
  for (int i = 0; i < kMostLinks; ++i) {
    if (is_open_file(at.string())) return at.string();
    std::error_code none;
    const fs::path next = fs::read_symlink(at, none);
    if (none) return at.string();
    at = at.parent_path() / next;  // an absolute target replaces the folder
  }
  throw Error(path, "file", "at most " + std::to_string(kMostLinks) + " symbolic links", "more");
}

bool is_open_file(const std::string& resolved) {
  return resolved.starts_with("/proc/self/fd/") || resolved.starts_with("/dev/fd/");
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error) && !error;
}

}  // namespace thalweg::io
