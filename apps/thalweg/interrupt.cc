#include "interrupt.h"

#include <csignal>

namespace thalweg::app {
namespace {

volatile std::sig_atomic_t g_pressed = 0;

void on_interrupt(int signal) {
  if (g_pressed != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  g_pressed = 1;
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART, so that a read from the terminal returns
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  g_pressed = 0;
  install(on_interrupt);
}

InterruptWatch::~InterruptWatch() { install(SIG_DFL); }

bool InterruptWatch::pressed() { return g_pressed != 0; }

bool InterruptWatch::take() {
  const bool was_pressed = g_pressed != 0;
  g_pressed = 0;
  return was_pressed;
}

}  // namespace thalweg::app
