#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/mapping_faults.h"

namespace thalweg::io {

using Bytes = std::span<const std::byte>;

// How a mapping will be read, for the kernel's read-ahead.
enum class Access : std::uint8_t { kNormal, kSequential, kRandom };

// A regular file, mapped read-only: pages are loaded when they are first read, and shared with every other process that
// maps the file. What a file loses while it is mapped, because it is truncated or its disk fails, reads as zeros:
// require_intact() reports it. Throws Error that names the path and the system's reason.
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

  // Throws Error if a page was read that the file had lost. For the end of a run over the file's bytes.
  void require_intact() const;

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
  std::unique_ptr<MappingGuard> guard_;
};

void require_intact(const std::vector<MappedFile>& files);

// Loads every page of several files. `progress`, if given, is called with the fraction done, and with 1 at the end.
void prefetch_files(const std::vector<MappedFile>& files, const std::function<void(double done)>& progress);

}  // namespace thalweg::io
