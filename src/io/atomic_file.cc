#include "io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "thalweg/error.h"

namespace thalweg::io {
namespace {

constexpr int kAttempts = 100;

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  static std::atomic<unsigned> counter{0};
  // A process that was killed may have left a file of the same name, which must not be overwritten.
  for (int attempt = 0; attempt < kAttempts && file_ < 0; ++attempt) {
    temporary_ = path_ + ".partial-" + std::to_string(getpid()) + "-" + std::to_string(++counter);
    file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) break;
  }
  if (file_ < 0) fail("a folder that can be written");
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* expected) const {
  throw Error(path_, "file", expected, std::generic_category().message(errno));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  size_ += bytes;
  while (bytes > 0) {
    // Linux writes at most 2 GB at once.
    const ssize_t written = ::write(file_, next, std::min(bytes, std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("room to write the file");
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (fsync(file_) != 0) fail("the file to reach the disk");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("a file that can be replaced");
  close(file_);
  file_ = -1;
  // The rename is durable once the folder is on the disk; some file systems cannot sync a folder.
  std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  if (folder.empty()) folder = ".";
  const int directory = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    fsync(directory);
    close(directory);
  }
}

}  // namespace thalweg::io
