// `--numa`: the policy that the kernel shows for a process, and the same text.

#include <csignal>

#include "command_line.h"

namespace thalweg::app {
namespace {

class MemoryNodes : public CommandLine {
 protected:
  static std::vector<std::string> command(const std::string& numa, const std::string& tokens) {
    return {"generate", "-m", at("model.gguf"), "-p", "hello there", "-n", tokens, "--numa", numa};
  }
  static bool known() { return fs::exists("/proc/self/numa_maps"); }
  // Of a process that generates, until it shows `word` or has ended.
  static bool policy_has(pid_t process, const std::string& word) {
    const std::string maps = "/proc/" + std::to_string(process) + "/numa_maps";
    int status = 0;
    while (waitpid(process, &status, WNOHANG) == 0) {
      if (read_file(maps).find(word) != std::string::npos) {
        kill(process, SIGKILL);
        waitpid(process, &status, 0);
        return true;
      }
      usleep(1000);
    }
    return false;
  }
};

TEST_F(MemoryNodes, AreTakenInTurn) {
  if (!known()) GTEST_SKIP() << "this kernel knows no memory nodes";
  EXPECT_TRUE(policy_has(start(command("interleave", "200"), ""), " interleave:"));
  EXPECT_FALSE(policy_has(start(command("off", "20"), ""), " interleave:"));
}

TEST_F(MemoryNodes, DoNotChangeText) {
  if (!known()) GTEST_SKIP() << "this kernel knows no memory nodes";
  const Result off = run(command("off", "20"));
  ASSERT_EQ(off.code, 0) << off.err;
  const Result interleaved = run(command("interleave", "20"));
  EXPECT_EQ(interleaved.code, 0) << interleaved.err;
  EXPECT_EQ(interleaved.out, off.out);
  EXPECT_FALSE(off.out.empty());
}

TEST_F(MemoryNodes, AreOffOrInterleaved) { expect_refusal(command("spread", "2"), {"--numa", "interleave"}); }

}  // namespace
}  // namespace thalweg::app
