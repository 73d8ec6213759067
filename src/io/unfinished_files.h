#pragma once

#include <string>

namespace thalweg::io {

// Removes the files that this process has begun and not finished: the temporary files of AtomicFile and the locks of
// FileLock. Async-signal-safe: for a handler of a signal that ends the process.
void remove_unfinished_files() noexcept;

// Enters a file into that list while it exists. Files beyond the first 64 at once are not entered.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(std::string path);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int entry_;  // -1: none
};

}  // namespace thalweg::io
