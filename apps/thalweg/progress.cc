#include "progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace thalweg::app {

Progress::Progress(std::size_t total)
    : total_(std::max<std::size_t>(total, 1)), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::step(std::string_view what) {
  ++done_;
  if (!terminal_) return;
  constexpr std::size_t kWidth = 30;
  const std::size_t filled = std::min(kWidth, kWidth * done_ / total_);
  fmt::print(stderr, "\r\033[K[{}{}] {}/{} {:.60}", std::string(filled, '#'), std::string(kWidth - filled, '.'), done_,
             total_, what);
  std::fflush(stderr);
}

void Progress::clear() const {
  if (!terminal_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace thalweg::app
