#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace thalweg::io {

using Bytes = std::span<const std::byte>;

// How a mapping will be read, for the kernel's read-ahead.
enum class Access : std::uint8_t { kNormal, kSequential, kRandom };

// A regular file, mapped read-only: pages are loaded when they are first read, and shared with every other process that
// maps the file. The file must keep its length while it is mapped: reading a page that was cut off ends
// the process with SIGBUS. Throws Error that names the path and the system's reason.
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  Bytes bytes() const { return {data_, size_}; }

  // A hint that the system may ignore.
  void advise(Access access) const;

  // Loads every page, in order. `progress`, if given, is called with the number of bytes loaded, and with the file's
  // size at the end.
  void prefetch(const std::function<void(std::uint64_t bytes)>& progress) const;

 private:
  void unmap();

  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Loads every page of several files. `progress`, if given, is called with the fraction done, and with 1 at the end.
void prefetch_files(const std::vector<MappedFile>& files, const std::function<void(double done)>& progress);

}  // namespace thalweg::io
