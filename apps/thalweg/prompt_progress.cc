#include "prompt_progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "streams.h"
#include "terminal.h"

namespace thalweg::app {

PromptProgress::PromptProgress(std::size_t tokens, std::size_t chunk) : tokens_(tokens), chunk_(chunk) {
  if (tokens > 0 && !quiet() && takes_escapes(STDERR_FILENO)) drawer_ = std::thread([this] { draw(); });
}

PromptProgress::~PromptProgress() { end(); }

void PromptProgress::end() {
  if (!drawer_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  end_.notify_one();
  drawer_.join();
}

void PromptProgress::draw() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(mutex_);
  if (end_.wait_for(lock, std::chrono::seconds(2), [this] { return ended_; })) return;
  do {
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    note("\r\033[Kreading the prompt: {} of {} tokens, {:.0f} s", std::min(chunks_ * chunk_, tokens_), tokens_,
         elapsed);
  } while (!end_.wait_for(lock, std::chrono::milliseconds(500), [this] { return ended_; }));
  note("\r\033[K");
}

}  // namespace thalweg::app
