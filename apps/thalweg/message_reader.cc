#include "message_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "interrupt.h"
#include "streams.h"
#include "terminal.h"

#if THALWEG_READLINE
#include <readline/history.h>
#include <readline/readline.h>
#endif

namespace thalweg::app {
namespace {

namespace fs = std::filesystem;

// As the XDG base directory specification says; empty where there is no home.
fs::path history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && state[0] == '/') return fs::path(state) / "thalweg/chat_history";
  if (home != nullptr && home[0] == '/') return fs::path(home) / ".local/state/thalweg/chat_history";
  return {};
}

#if THALWEG_READLINE
constexpr int kMostHistory = 1000;

// readline's own loop would go on waiting after a signal.
int end_at_signal() {
  if (InterruptWatch::pressed()) {
    rl_line_buffer[0] = '\0';
    rl_point = rl_end = 0;
    rl_done = 1;
  }
  return 0;
}

void set_up_readline() {
  rl_readline_name = "thalweg";
  rl_catch_signals = 0;  // handled by InterruptWatch
  rl_signal_event_hook = end_at_signal;
  rl_outstream = stdout;
  rl_bind_key('\t', rl_insert);  // there are no file names to complete
  if (takes_escapes(STDOUT_FILENO)) rl_variable_bind("enable-bracketed-paste", "on");
}
#endif

}  // namespace

MessageReader::MessageReader() : terminal_(isatty(STDIN_FILENO) == 1), edits_(false) {
#if THALWEG_READLINE
  edits_ = terminal_ && isatty(STDOUT_FILENO) == 1;
  if (!edits_) return;
  set_up_readline();
  using_history();
  stifle_history(kMostHistory);
  history_ = history_file().string();
  if (!history_.empty()) read_history(history_.c_str());
#endif
}

MessageReader::~MessageReader() { save_history(); }

void MessageReader::save_history() {
#if THALWEG_READLINE
  if (!edits_ || history_.empty()) return;
  // A history that cannot be kept is no reason to complain.
  std::error_code error;
  fs::create_directories(fs::path(history_).parent_path(), error);
  const mode_t before = umask(0077);
  write_history(history_.c_str());
  umask(before);
#endif
}

MessageReader::Line MessageReader::read_line(const char* prompt, std::string& line) {
#if THALWEG_READLINE
  if (edits_) {
    char* typed = readline(prompt);
    if (InterruptWatch::take()) {
      std::free(typed);
      return Line::kInterrupted;
    }
    if (typed == nullptr || InterruptWatch::asked_to_end()) {
      std::free(typed);
      return Line::kEnd;
    }
    line = typed;
    std::free(typed);
    return Line::kRead;
  }
#endif
  if (terminal_) write_now(prompt);
  line.clear();
  for (;;) {
    const int c = std::getc(stdin);
    if (c == '\n') return Line::kRead;
    if (c == EOF) {
      if (!InterruptWatch::pressed()) return line.empty() ? Line::kEnd : Line::kRead;
      std::clearerr(stdin);
      return InterruptWatch::take() ? Line::kInterrupted : Line::kEnd;
    }
    line += static_cast<char>(c);
    if (line.size() > kMostBytes) return Line::kRead;
  }
}

bool MessageReader::read(std::string& message) {
  message.clear();
  std::string line;
  for (;;) {
    switch (read_line(message.empty() ? "> " : "  ", line)) {
      case Line::kEnd:
        return false;
      case Line::kInterrupted:
        message.clear();
        print("\n");
        continue;
      case Line::kRead:
        break;
    }
    const bool more = line.ends_with('\\');
    if (more) line.back() = '\n';
    message += line;
    if (message.size() > kMostBytes) {
      throw std::runtime_error("a message has more than " + std::to_string(kMostBytes) +
                               " bytes: give long texts to `thalweg generate -f FILE`");
    }
    if (!more) break;
  }
#if THALWEG_READLINE
  if (edits_ && message.find_first_not_of(" \t\r\n") != std::string::npos) add_history(message.c_str());
#endif
  return true;
}

}  // namespace thalweg::app
