#include "message_reader.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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

// Waits for input. Returns false at a signal.
bool wait_for_input() {
  while (!InterruptWatch::pressed()) {
    // With a limit, for a signal that comes just before.
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, 200) > 0) return true;
  }
  return false;
}

#if THALWEG_READLINE
constexpr int kMostHistory = 1000;

// As the XDG base directory specification says; empty where there is no home.
fs::path history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && state[0] == '/') return fs::path(state) / "thalweg/chat_history";
  if (home != nullptr && home[0] == '/') return fs::path(home) / ".local/state/thalweg/chat_history";
  return {};
}

// What readline's callback received.
struct Typed {
  bool complete = false;
  bool end = false;  // of the input
  std::string line;
} g_typed;

void take_line(char* line) {
  g_typed = {true, line == nullptr, line == nullptr ? "" : line};
  std::free(line);
  rl_callback_handler_remove();  // before the next prompt is drawn
}

// readline() itself would go on waiting after a signal. Returns false at a signal.
bool edit_line(const char* prompt) {
  g_typed = {};
  rl_callback_handler_install(prompt, take_line);
  while (!g_typed.complete) {
    if (wait_for_input()) {
      rl_callback_read_char();
      continue;
    }
    rl_free_line_state();
    rl_replace_line("", 0);
    rl_callback_handler_remove();
    return false;
  }
  return true;
}

void set_up_readline() {
  rl_readline_name = "thalweg";
  rl_catch_signals = 0;  // handled by InterruptWatch
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
    if (!edit_line(prompt)) return InterruptWatch::take() ? Line::kInterrupted : Line::kEnd;
    if (g_typed.end) return Line::kEnd;
    line = g_typed.line;
    return Line::kRead;
  }
#endif
  if (terminal_) write_now(prompt);
  line.clear();
  for (;;) {
    const std::size_t end = input_.find('\n');
    line.append(input_, 0, end);
    if (end != std::string::npos) {
      input_.erase(0, end + 1);
      return Line::kRead;
    }
    input_.clear();
    if (line.size() > kMostBytes) return Line::kRead;
    if (!wait_for_input()) return InterruptWatch::take() ? Line::kInterrupted : Line::kEnd;
    char block[4096];
    const ssize_t got = ::read(STDIN_FILENO, block, sizeof(block));
    if (got <= 0) return line.empty() ? Line::kEnd : Line::kRead;
    input_.assign(block, static_cast<std::size_t>(got));
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
