#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "io/unfinished_files.h"

namespace thalweg::io {

// A file that appears whole or not at all: bytes go to a temporary file beside it, which commit() flushes to the disk
// and renames. Without commit() the temporary file is removed and the file is unchanged.
//
// Symbolic links are followed: the file that they lead to is replaced, and keeps its permissions. A device other than a
// disk, a pipe and an open file of the process (/dev/stdout) are written to directly. What a killed process left is
// removed by the next write to the same file. Throws Error that names the path and the system's reason.
class AtomicFile {
 public:
  // `mode`: of a file that does not exist yet, before the umask.
  explicit AtomicFile(std::string path, mode_t mode = 0666);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // bytes written so far

  void write(const void* data, std::size_t bytes);

  // No write may follow.
  void commit();

 private:
  [[noreturn]] void fail(const char* expected) const;
  void open_temporary(mode_t mode);

  std::string path_;
  std::string target_;                         // `path_` with its links followed
  std::unique_ptr<UnfinishedFile> temporary_;  // null: written to directly
  std::optional<mode_t> replaced_mode_;        // of the file that commit() replaces
  int file_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace thalweg::io
