// Where bars and escape sequences appear: stderr is a terminal of our own here.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "command_line.h"

namespace thalweg::app {
namespace {

class Terminal : public CommandLine {
 protected:
  // What `verify` writes to stderr, a terminal or a pipe, with these variables on top of an environment without any.
  static std::string stderr_of(bool terminal, std::vector<std::string> variables, const std::string& option = "-t0") {
    int read_end = -1;
    int write_end = -1;
    if (terminal) {
      read_end = posix_openpt(O_RDWR | O_NOCTTY);
      EXPECT_EQ(grantpt(read_end), 0);
      EXPECT_EQ(unlockpt(read_end), 0);
      write_end = open(ptsname(read_end), O_RDWR | O_NOCTTY);
    } else {
      int ends[2];
      EXPECT_EQ(pipe(ends), 0);
      read_end = ends[0];
      write_end = ends[1];
    }
    fcntl(read_end, F_SETFD, FD_CLOEXEC);
    std::vector<std::string> words = {THALWEG_BINARY, "verify", "--op", "add", option};
    const auto pointers = [](std::vector<std::string>& list) {
      std::vector<char*> array;
      for (std::string& entry : list) array.push_back(entry.data());
      array.push_back(nullptr);
      return array;
    };
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, write_end, 2);
    pid_t process = 0;
    EXPECT_EQ(
        posix_spawn(&process, THALWEG_BINARY, &files, nullptr, pointers(words).data(), pointers(variables).data()), 0);
    posix_spawn_file_actions_destroy(&files);
    close(write_end);
    std::string text;
    char block[4096];
    for (ssize_t got = 0; (got = read(read_end, block, sizeof block)) > 0;) {
      text.append(block, static_cast<std::size_t>(got));
    }
    close(read_end);
    int status = 0;
    waitpid(process, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
    return text;
  }
};

TEST_F(Terminal, GetsBars) {
  const std::string text = stderr_of(true, {"TERM=xterm"});
  EXPECT_NE(text.find("\x1b[K[###"), std::string::npos) << text;
  EXPECT_NE(stderr_of(true, {"TERM=xterm", "NO_COLOR="}), "") << "an empty NO_COLOR counts as none";
  EXPECT_NE(stderr_of(true, {"TERM=xterm", "CLICOLOR_FORCE=0"}), "");
}

TEST_F(Terminal, GetsNoEscapesWhereItAsksForNone) {
  EXPECT_EQ(stderr_of(true, {"TERM=dumb"}), "");
  EXPECT_EQ(stderr_of(true, {}), "") << "no TERM";
  EXPECT_EQ(stderr_of(true, {"TERM="}), "");
  EXPECT_EQ(stderr_of(true, {"TERM=xterm", "NO_COLOR=1"}), "");
  EXPECT_EQ(stderr_of(true, {"TERM=dumb", "CLICOLOR_FORCE=1"}), "");
  EXPECT_EQ(stderr_of(true, {"TERM=xterm", "NO_COLOR=1", "CLICOLOR_FORCE=1"}), "");
  EXPECT_EQ(stderr_of(true, {"TERM=xterm"}, "--quiet"), "");
}

TEST_F(Terminal, IsNotAPipeUnlessForced) {
  EXPECT_EQ(stderr_of(false, {"TERM=xterm"}), "");
  EXPECT_EQ(stderr_of(false, {"TERM=xterm", "CLICOLOR_FORCE=0"}), "");
  EXPECT_NE(stderr_of(false, {"TERM=xterm", "CLICOLOR_FORCE=1"}).find("\x1b[K[###"), std::string::npos);
  EXPECT_EQ(stderr_of(false, {"TERM=xterm", "CLICOLOR_FORCE=1", "NO_COLOR=1"}), "");
}

}  // namespace
}  // namespace thalweg::app
