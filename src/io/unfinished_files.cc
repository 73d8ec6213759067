#include "io/unfinished_files.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

namespace thalweg::io {
namespace {

std::array<std::atomic<const char*>, 64> g_files;
static_assert(std::atomic<const char*>::is_always_lock_free, "a signal handler reads the list");

}  // namespace

void remove_unfinished_files() noexcept {
  const int before = errno;
  for (const std::atomic<const char*>& entry : g_files) {
    if (const char* path = entry.load()) unlink(path);
  }
  errno = before;
}

UnfinishedFile::UnfinishedFile(std::string path) : path_(std::move(path)), entry_(-1) {
  for (std::size_t i = 0; i < g_files.size() && entry_ < 0; ++i) {
    const char* free = nullptr;
    if (g_files[i].compare_exchange_strong(free, path_.c_str())) entry_ = static_cast<int>(i);
  }
}

UnfinishedFile::~UnfinishedFile() {
  if (entry_ >= 0) g_files[static_cast<std::size_t>(entry_)].store(nullptr);
}

}  // namespace thalweg::io
