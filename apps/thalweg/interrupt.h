#pragma once

namespace thalweg::app {

// From here on Ctrl-C, SIGTERM and SIGHUP remove the files that the process has not finished before they end it, Ctrl-C
// with exit code 130. What the caller had ignored (nohup) stays ignored.
void handle_signals();

// While an object exists, these signals are recorded instead of ending the program. A second one before the first was
// taken ends it as above. At most one object exists at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool pressed();       // any of them
  static bool asked_to_end();  // SIGTERM or SIGHUP
  static bool take();          // whether Ctrl-C was pressed; resets that

  // Of a command that a signal stopped: 128 and the signal's number, as a shell reports it; 0 if none came.
  static int exit_code();
};

}  // namespace thalweg::app
