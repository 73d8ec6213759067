#include "interrupt.h"

#include <unistd.h>

#include <csignal>

#include "io/unfinished_files.h"

namespace thalweg::app {
namespace {

volatile std::sig_atomic_t g_watched = 0;
volatile std::sig_atomic_t g_signal = 0;  // the one that came

void on_signal(int signal) {
  if (g_watched != 0 && g_signal == 0) {
    g_signal = signal;
    return;
  }
  io::remove_unfinished_files();
  if (signal == SIGINT) _exit(128 + SIGINT);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;  // writes go on; who waits for input polls
    sigaction(signal, &action, nullptr);
  }
}

InterruptWatch::InterruptWatch() {
  g_signal = 0;
  g_watched = 1;
}

InterruptWatch::~InterruptWatch() { g_watched = 0; }

bool InterruptWatch::pressed() { return g_signal != 0; }

bool InterruptWatch::asked_to_end() { return g_signal == SIGTERM || g_signal == SIGHUP; }

bool InterruptWatch::take() {
  const bool pressed = g_signal == SIGINT;
  if (pressed) g_signal = 0;
  return pressed;
}

int InterruptWatch::exit_code() { return g_signal != 0 ? 128 + g_signal : 0; }

}  // namespace thalweg::app
