#pragma once

namespace thalweg::app {

// While it lives, Ctrl-C is remembered instead of ending the program. Pressed again before the first one was taken, it
// ends the program as usual. One at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool pressed();
  static bool take();  // whether it was pressed; then it counts as not pressed
};

}  // namespace thalweg::app
