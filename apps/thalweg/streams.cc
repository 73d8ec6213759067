#include "streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <system_error>

namespace thalweg::app {
namespace {

int g_output_error = 0;  // errno of the first write that failed

}  // namespace

void prepare_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    // In order, so that each takes its own number. Writing to stdout fails, as it would have.
    static_cast<void>(open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY));
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error like a full disk
}

bool write_output(std::string_view text) noexcept {
  if (g_output_error != 0) return false;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) g_output_error = errno != 0 ? errno : EIO;
  return g_output_error == 0;
}

bool write_now(std::string_view text) noexcept {
  if (!write_output(text)) return false;
  errno = 0;
  if (std::fflush(stdout) != 0) g_output_error = errno != 0 ? errno : EIO;
  return g_output_error == 0;
}

void write_note(std::string_view text) noexcept {
  // Unlike stdout, stderr has no buffer, and needs no flush.
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

void flush_output() {
  errno = 0;
  if (g_output_error == 0 && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    g_output_error = errno != 0 ? errno : EIO;
  }
  if (g_output_error == 0) return;
  throw std::runtime_error("cannot write the output: " + std::generic_category().message(g_output_error));
}

}  // namespace thalweg::app
