#pragma once

namespace thalweg::app {

// While an object exists, Ctrl-C is recorded instead of ending the program. A second Ctrl-C before the first was taken
// ends the program as usual. At most one object exists at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool pressed();
  static bool take();  // whether it was pressed; resets that
};

}  // namespace thalweg::app
