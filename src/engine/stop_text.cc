#include "engine/stop_text.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace thalweg::engine {

std::string StopText::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t found = held_.find(stop);
    if (found >= end) continue;
    end = found;
    stop_ = stop;
  }
  stopped_ = end != std::string::npos;
  if (stopped_) {
    held_.resize(end);
    return std::exchange(held_, {});
  }
  // The longest end of the text that begins a stop string.
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        keep = length;
        break;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopText::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace thalweg::engine
