#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace thalweg::engine {

// Holds text back while it may be the beginning of a stop string.
class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Returns the text that can be shown. Once a stop string is there, it and what follows are dropped.
  std::string push(std::string_view text);
  // What was held back.
  std::string finish();
  bool stopped() const { return stopped_; }
  const std::string& stop() const { return stop_; }  // the one that is there

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
  std::string stop_;
};

}  // namespace thalweg::engine
