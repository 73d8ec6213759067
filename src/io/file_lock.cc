#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "io/paths.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

// The process id that the holder wrote, for the message.
std::string holder(int file) {
  char text[32] = {};
  const ssize_t length = pread(file, text, sizeof(text) - 1, 0);
  return length > 0 ? "one in use by process " + std::string(text) : std::string("one in use");
}

bool is_at(int file, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace

FileLock::FileLock(const std::string& path) {
  const std::string lock_path = resolve_links(path) + ".lock";
  // Until the file that is locked is the one that has the name: its last holder may have removed it in between.
  do {
    if (file_ >= 0) close(file_);
    file_ = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_ < 0) throw Error(path, "file", "a folder that can be written", std::generic_category().message(errno));
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
      const std::string given =
          errno == EWOULDBLOCK ? holder(file_) : "one that cannot: " + std::generic_category().message(errno);
      close(file_);
      throw Error(path, "file", "a file that can be locked", given);
    }
  } while (!is_at(file_, lock_path));
  lock_ = std::make_unique<UnfinishedFile>(lock_path);
  const std::string process = std::to_string(getpid());
  // Only the message needs it.
  if (ftruncate(file_, 0) == 0) static_cast<void>(!pwrite(file_, process.data(), process.size(), 0));
}

FileLock::~FileLock() {
  unlink(lock_->path().c_str());
  close(file_);
}

}  // namespace thalweg::io
