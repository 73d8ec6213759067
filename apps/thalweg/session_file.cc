#include "session_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "io/paths.h"
#include "output_file.h"
#include "thalweg/error.h"

namespace thalweg::app {
namespace {

namespace fs = std::filesystem;

constexpr char kRemedy[] = "; --session-new begins again and keeps this file under another name";

// Moves a file to a name that is free, and returns the name. The link makes sure that nothing is replaced.
std::string move_aside(const std::string& path) {
  for (int i = 1;; ++i) {
    std::string name = path + "." + std::to_string(i);
    if (link(path.c_str(), name.c_str()) == 0) {
      fs::remove(path);
      return name;
    }
    if (errno == EEXIST) continue;
    // A file system without links.
    if (fs::exists(fs::symlink_status(name))) continue;
    fs::rename(path, name);
    return name;
  }
}

}  // namespace

SessionFile::SessionFile(std::string path, const std::vector<std::string>& inputs, bool anew)
    : path_(std::move(path)), anew_(anew), lock_(path_) {
  check_not_read(path_, inputs);
  std::error_code none;
  const fs::file_status status = fs::status(path_, none);
  if (!fs::exists(status)) return;
  if (!fs::is_regular_file(status)) {
    throw std::runtime_error(path_ + " is a folder, a device or a pipe: give the name of a file with --session");
  }
  if (!anew_ && access(path_.c_str(), W_OK) != 0) {
    throw std::runtime_error(path_ + " cannot be written: " + std::generic_category().message(errno) + kRemedy);
  }
}

bool SessionFile::restore(Sequence& sequence) const {
  if (anew_ || !fs::exists(path_)) return false;
  try {
    sequence.restore(path_);
  } catch (const Error& error) {
    throw std::runtime_error(std::string(error.what()) + kRemedy);
  }
  return !sequence.tokens().empty();
}

std::string SessionFile::save(const Sequence& sequence) {
  const std::string target = io::resolve_links(path_);
  std::string kept;
  if (std::exchange(anew_, false) && fs::exists(target)) kept = move_aside(target);
  sequence.save(path_);
  return kept;
}

}  // namespace thalweg::app
