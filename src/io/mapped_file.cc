#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "thalweg/error.h"

namespace thalweg::io {
namespace {

constexpr std::size_t kStep = std::size_t{16} << 20;

std::string reason(int error) { return std::generic_category().message(error); }

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

// mmap's and madvise's parameters are not const, though a read-only mapping is never written through them.
void* address(const std::byte* data) { return const_cast<std::byte*>(data); }

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const Descriptor file{open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) throw Error(path_, "file", "a file that can be read", reason(errno));
  struct stat status {};
  if (fstat(file.number, &status) != 0) throw Error(path_, "file", "a file that can be read", reason(errno));
  if (S_ISDIR(status.st_mode)) throw Error(path_, "file", "a regular file", "a directory");
  if (!S_ISREG(status.st_mode)) throw Error(path_, "file", "a regular file", "a device or a pipe");
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // an empty file cannot be mapped
  void* data = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number, 0);
  if (data == MAP_FAILED) {
    throw Error(path_, "file", "memory to map " + std::to_string(size_) + " bytes", reason(errno));
  }
  data_ = static_cast<const std::byte*>(data);
  guard_ = std::make_unique<MappingGuard>(data_, size_);
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, std::size_t{0})),
      guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, std::size_t{0});
    guard_ = std::move(other.guard_);
  }
  return *this;
}

void MappedFile::require_intact() const {
  if (guard_ == nullptr || !guard_->lost()) return;
  throw Error(path_, "file", "the " + std::to_string(size_) + " bytes that it had when it was opened",
              "one that lost some of them: it was truncated or replaced in place while in use, or its disk failed");
}

void MappedFile::unmap() {
  guard_.reset();
  if (data_ != nullptr) munmap(address(data_), size_);
}

void MappedFile::advise(Access access) const {
  if (data_ == nullptr) return;
  const int advice = access == Access::kSequential ? MADV_SEQUENTIAL
                     : access == Access::kRandom   ? MADV_RANDOM
                                                   : MADV_NORMAL;
  madvise(address(data_), size_, advice);
}

void MappedFile::prefetch(const std::function<void(std::uint64_t bytes)>& progress) const {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  // Read-ahead of the next step overlaps with touching the pages of this one.
  const auto read_ahead = [&](std::size_t begin) {
    if (begin < size_) madvise(address(data_ + begin), std::min(kStep, size_ - begin), MADV_WILLNEED);
  };
  read_ahead(0);
  for (std::size_t begin = 0; begin < size_; begin += kStep) {
    read_ahead(begin + kStep);
    const std::size_t end = std::min(begin + kStep, size_);
    for (std::size_t i = begin; i < end; i += page)
      static_cast<void>(*static_cast<const volatile std::byte*>(data_ + i));
    if (progress) progress(end);
  }
}

void require_intact(const std::vector<MappedFile>& files) {
  for (const MappedFile& file : files) file.require_intact();
}

void prefetch_files(const std::vector<MappedFile>& files, const std::function<void(double done)>& progress) {
  std::uint64_t total = 0;
  for (const MappedFile& file : files) total += file.bytes().size();
  std::uint64_t before = 0;
  for (const MappedFile& file : files) {
    file.prefetch([&](std::uint64_t bytes) {
      if (progress && before + bytes < total)
        progress(static_cast<double>(before + bytes) / static_cast<double>(total));
    });
    before += file.bytes().size();
  }
  if (progress) progress(1.0);
}

}  // namespace thalweg::io
