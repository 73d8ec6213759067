#pragma once

#include <cstddef>
#include <string_view>

namespace thalweg::app {

// A bar on the last line of a terminal's stderr; nothing where stderr is not a terminal.
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
  bool terminal_;
};

}  // namespace thalweg::app
