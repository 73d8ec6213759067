#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace thalweg::io {

// A file that appears whole or not at all: bytes go to a temporary file in the same folder, which commit() flushes to
// the disk and then renames to `path`. Without commit() the temporary file is removed and `path` is unchanged.
// Throws Error that names the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
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

  std::string path_;
  std::string temporary_;
  int file_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace thalweg::io
