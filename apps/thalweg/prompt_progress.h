#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>

namespace thalweg::app {

// How far a prompt has been read, on the last line of a terminal's stderr, from the third second on. A chunk of a large
// model takes seconds: the line is drawn by a thread of its own, so that it moves in between too.
class PromptProgress {
 public:
  PromptProgress(std::size_t tokens, std::size_t chunk);
  ~PromptProgress();
  PromptProgress(const PromptProgress&) = delete;
  PromptProgress& operator=(const PromptProgress&) = delete;

  void chunk_done() { ++chunks_; }
  void end();  // removes the line; called again, does nothing

 private:
  void draw();

  std::size_t tokens_;
  std::size_t chunk_;
  std::atomic<std::size_t> chunks_{0};
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread drawer_;
};

}  // namespace thalweg::app
