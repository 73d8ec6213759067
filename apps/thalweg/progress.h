#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace thalweg::app {

// A bar on the last line of stderr where that takes escapes (terminal.h); nothing elsewhere, and nothing with --quiet.
class Progress {
 public:
  explicit Progress(std::size_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(std::string_view what);
  void clear() const;  // before something else is printed

 private:
  std::size_t total_;
  std::size_t done_ = 0;
  bool shown_;
};

// A bar for one long task, shown once a second has passed and at least another remains.
class WorkBar {
 public:
  explicit WorkBar(std::string what);
  ~WorkBar();
  WorkBar(const WorkBar&) = delete;
  WorkBar& operator=(const WorkBar&) = delete;

  void update(double done);  // the fraction done
  void clear();
  std::function<void(double done)> listener() {
    return [this](double done) { update(done); };
  }

 protected:
  void describe(std::string what) { what_ = std::move(what); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_;
  bool shown_;
  bool visible_ = false;
};

}  // namespace thalweg::app
