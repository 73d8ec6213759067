#include "progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "streams.h"
#include "terminal.h"

namespace thalweg::app {
namespace {

bool bars_shown() { return !quiet() && takes_escapes(STDERR_FILENO); }

}  // namespace

Progress::Progress(std::size_t total) : total_(std::max<std::size_t>(total, 1)), shown_(bars_shown()) {}

Progress::~Progress() { clear(); }

void Progress::step(std::string_view what) {
  ++done_;
  if (!shown_) return;
  constexpr std::size_t kWidth = 30;
  const std::size_t filled = std::min(kWidth, kWidth * done_ / total_);
  note("\r\033[K[{}{}] {}/{} {:.60}", std::string(filled, '#'), std::string(kWidth - filled, '.'), done_, total_, what);
}

void Progress::clear() const {
  if (!shown_) return;
  note("\r\033[K");
}

WorkBar::WorkBar(std::string what) : what_(std::move(what)), shown_(bars_shown()) {}

WorkBar::~WorkBar() { clear(); }

void WorkBar::update(double done) {
  if (!shown_) return;
  if (done >= 1.0) return clear();
  const Clock::time_point now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left = done > 0.0 ? elapsed * (1.0 - done) / done : 0.0;
  if (!visible_ && (elapsed < 1.0 || left < 1.0)) return;
  if (visible_ && now - drawn_ < std::chrono::milliseconds(100)) return;
  visible_ = true;
  drawn_ = now;
  constexpr int kWidth = 30;
  const int filled = std::clamp(static_cast<int>(kWidth * done), 0, kWidth);
  note("\r\033[K[{}{}] {:3.0f} % {}, {:.0f} s left", std::string(static_cast<std::size_t>(filled), '#'),
       std::string(static_cast<std::size_t>(kWidth - filled), '.'), 100 * done, what_, left);
}

void WorkBar::clear() {
  if (!visible_) return;
  visible_ = false;
  note("\r\033[K");
}

}  // namespace thalweg::app
