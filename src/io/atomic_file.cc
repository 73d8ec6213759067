#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "io/paths.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

constexpr int kAttempts = 100;
constexpr char kSuffix[] = ".partial-";

std::filesystem::path folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

// Temporary files are locked by the process that writes them, so that one without a lock belongs to nobody.
void remove_leftovers(const std::string& target) {
  const std::string prefix = std::filesystem::path(target).filename().string() + kSuffix;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder_of(target), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!entry->path().filename().string().starts_with(prefix)) continue;
    const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(file);
  }
}

}  // namespace

AtomicFile::AtomicFile(std::string path, mode_t mode) : path_(std::move(path)), target_(resolve_links(path_)) {
  struct stat status {};
  const bool exists = stat(target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw Error(path_, "file", "a file", "a directory");
  if (exists && S_ISBLK(status.st_mode)) throw Error(path_, "file", "a file", "a disk");
  if (!exists) {
    open_temporary(mode);
  } else if (S_ISREG(status.st_mode) && !is_open_file(target_)) {
    if (access(target_.c_str(), W_OK) != 0) fail("a file that can be written");
    replaced_mode_ = status.st_mode & 07777;
    open_temporary(0600);
  } else {
    file_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    if (file_ < 0) fail("a file that can be written");
  }
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  if (temporary_) unlink(temporary_->path().c_str());
  close(file_);
}

void AtomicFile::open_temporary(mode_t mode) {
  static std::atomic<unsigned> counter{0};
  remove_leftovers(target_);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    temporary_ = std::make_unique<UnfinishedFile>(target_ + kSuffix + std::to_string(getpid()) + "-" +
                                                  std::to_string(++counter));
    file_ = open(temporary_->path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file_ < 0 && errno != EEXIST) break;
    if (file_ < 0) continue;
    // Another process may have taken it for a leftover before it was locked.
    flock(file_, LOCK_EX);
    struct stat status {};
    if (fstat(file_, &status) == 0 && status.st_nlink > 0) return;
    close(std::exchange(file_, -1));
  }
  fail("a folder that can be written");
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
  if (temporary_) {
    if (replaced_mode_ && fchmod(file_, *replaced_mode_) != 0) fail("a file whose permissions can be set");
    if (fsync(file_) != 0) fail("the file to reach the disk");
    if (std::rename(temporary_->path().c_str(), target_.c_str()) != 0) fail("a file that can be replaced");
    temporary_.reset();
  }
  if (close(std::exchange(file_, -1)) != 0) fail("the file to reach the disk");
  // The rename is durable once the folder is on the disk; some file systems cannot sync a folder.
  const int directory = open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    fsync(directory);
    close(directory);
  }
}

}  // namespace thalweg::io
