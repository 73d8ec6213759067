// `thalweg chat` at a terminal of its own.

#include <poll.h>
#include <pty.h>

#include "command_line.h"

namespace thalweg::app {
namespace {

class ChatTerminal : public CommandLine {
 protected:
  // Starts a chat at a new terminal.
  void SetUp() override {
    process_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    ASSERT_GE(process_, 0);
    if (process_ > 0) return;
    setenv("TERM", "xterm", 1);
    setenv("XDG_STATE_HOME", at("state").c_str(), 1);
    const std::string model = at("model.gguf");
    execl(THALWEG_BINARY, THALWEG_BINARY, "chat", "--force", "-m", model.c_str(), "-n", "5", "--temp", "0", nullptr);
    _exit(127);
  }

  void TearDown() override {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    close(terminal_);
  }

  void type(const std::string& keys) const {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  // Reads until the text has been shown `times` times in all.
  void expect_shown(const std::string& text, std::size_t times = 1) {
    pollfd ready{terminal_, POLLIN, 0};
    while (count(shown_, text) < times && poll(&ready, 1, 20'000) == 1) {
      char block[4096];
      const ssize_t got = read(terminal_, block, sizeof(block));
      if (got <= 0) break;
      shown_.append(block, static_cast<std::size_t>(got));
    }
    EXPECT_GE(count(shown_, text), times) << text << "\n" << shown_;
  }

  // Waits for an answer and the prompt after it: keys that are typed in between belong to the terminal, not to the
  // program.
  void expect_answer() {
    expect_shown("decode");
    shown_.erase(0, shown_.find("decode") + 6);
    expect_shown("> ");
  }

  // Reads on meanwhile: a program waits for its terminal to take what it wrote.
  int exit_code() {
    char block[4096];
    for (ssize_t got = 0; (got = read(terminal_, block, sizeof(block))) > 0;) {
      shown_.append(block, static_cast<std::size_t>(got));
    }
    int status = 0;
    waitpid(process_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  pid_t process_ = -1;
  int terminal_ = -1;
  std::string shown_;
};

TEST_F(ChatTerminal, EditsItsLinesAndRemembersThem) {
  expect_shown("> ");
  type("helloo\x7F\r");  // backspace
  expect_answer();
  type("\x1b[A\r");  // the line before
  expect_answer();
  type("\x04");
  EXPECT_EQ(exit_code(), 0);
  EXPECT_EQ(read_file(at("state/thalweg/chat_history")), "hello\nhello\n");
}

TEST_F(ChatTerminal, KeepsAPasteInOneMessage) {
  expect_shown("> ");
  type("\x1b[200~first line\nsecond line\n\x1b[201~\r");
  expect_answer();
  type("/exit\r");
  EXPECT_EQ(exit_code(), 0);
  EXPECT_EQ(count(shown_, "decode"), 0U) << shown_;
}

TEST_F(ChatTerminal, CtrlCDropsALineAndSigtermEnds) {
  expect_shown("> ");
  type("forget this");
  expect_shown("forget this");
  shown_.clear();
  type("\x03");
  expect_shown("> ");
  type("hello\r");
  expect_answer();
  kill(process_, SIGTERM);
  EXPECT_EQ(exit_code(), 143);
}

}  // namespace
}  // namespace thalweg::app
