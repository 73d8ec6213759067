#include "io/model_files.h"

#include <filesystem>
#include <system_error>

namespace thalweg::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPart = "-00001-of-00001.gguf";

bool is_digits(std::string_view text) { return text.find_first_not_of("0123456789") == std::string_view::npos; }

// "name" of "name-00001-of-00003.gguf"; empty for other names.
std::string_view split_stem(std::string_view name) {
  if (name.size() <= kPart.size()) return {};
  const std::string_view part = name.substr(name.size() - kPart.size());
  const bool is_part = part[0] == '-' && is_digits(part.substr(1, 5)) && part.substr(6, 4) == "-of-" &&
                       is_digits(part.substr(10, 5)) && part.substr(15) == ".gguf";
  return is_part ? name.substr(0, name.size() - kPart.size()) : std::string_view();
}

}  // namespace

std::vector<std::string> model_files(const std::string& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const std::string name = fs::path(path).filename().string();
  const std::string_view stem = split_stem(name);
  if (!is_folder && stem.empty()) {
    return fs::exists(path, error) ? std::vector<std::string>{path} : std::vector<std::string>();
  }
  const fs::path parent = fs::path(path).parent_path();
  const fs::path folder = is_folder ? fs::path(path) : parent.empty() ? fs::path(".") : parent;
  std::vector<std::string> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string other = entry->path().filename().string();
    if (is_folder || split_stem(other) == stem) files.push_back(entry->path().string());
  }
  return files;
}

}  // namespace thalweg::io
