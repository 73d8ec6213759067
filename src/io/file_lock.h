#pragma once

#include <memory>
#include <string>

#include "io/unfinished_files.h"

namespace thalweg::io {

// Keeps other processes from the file `path`, which need not exist, through a file `path`.lock beside it: for a file
// that is replaced, whose own lock would go with it. The lock file is removed at the end; one that a killed process
// left is in nobody's way. Throws Error if another process has the lock, naming it, or if the folder cannot be written.
class FileLock {
 public:
  explicit FileLock(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  std::unique_ptr<UnfinishedFile> lock_;
  int file_ = -1;
};

}  // namespace thalweg::io
