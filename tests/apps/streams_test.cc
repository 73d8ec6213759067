// What a command does when its streams, its files or its user stop it.

#include "command_line.h"

namespace thalweg::app {
namespace {

class Streams : public CommandLine {
 protected:
  static std::size_t partial_files() {
    std::size_t found = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      found += entry.path().string().find(".partial-") != std::string::npos ? 1 : 0;
    }
    return found;
  }

  static void wait_for_partial_file() {
    for (int i = 0; i < 1000 && partial_files() == 0; ++i) usleep(5'000);
    EXPECT_EQ(partial_files(), 1U);
  }
};

TEST_F(Streams, OutputThatCannotBeWrittenIsAnError) {
  for (const char* command :
       {"--help", "operations", "generate --help", "verify --op add", "inspect \"$MODEL\"",
        "perplexity -m \"$MODEL\" -f \"$DIR/text.txt\" --window 64", "generate -m \"$MODEL\" -p x -n 2"}) {
    write_file(at("text.txt"), "The ball is in the kitchen, and the lamp is in the attic.");
    for (const char* redirection : {">/dev/full", ">&-"}) {
      const Result result = shell(std::string("\"$THALWEG\" ") + command + " " + redirection);
      EXPECT_EQ(result.code, 2) << command << redirection;
      EXPECT_NE(result.err.find("thalweg: cannot write the output: "), std::string::npos) << command << result.err;
    }
    EXPECT_EQ(shell(std::string("\"$THALWEG\" ") + command + " 2>/dev/full").code, 0) << command;
    EXPECT_EQ(shell(std::string("\"$THALWEG\" ") + command + " 2>&-").code, 0) << command;
  }
}

TEST_F(Streams, AClosedStreamNeverBecomesAFile) {
  const Result result = shell("\"$THALWEG\" synth closed.gguf --gigabytes 0.01 0<&- 2>&-");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(run({"inspect", at("closed.gguf")}).code, 0);
}

TEST_F(Streams, SignalsLeaveNoTemporaryFiles) {
  const std::string out = at("large.gguf");
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, {SIGTERM, 128 + SIGTERM}, {SIGHUP, 128 + SIGHUP}}) {
    const pid_t process = start({"synth", out, "--gigabytes", "5"}, "");
    wait_for_partial_file();
    kill(process, signal);
    EXPECT_EQ(wait_for(process).code, code);
    EXPECT_EQ(partial_files(), 0U);
    EXPECT_FALSE(fs::exists(out));
  }
  // A process that is killed leaves its file, which the next one removes.
  const pid_t killed = start({"synth", out, "--gigabytes", "5"}, "");
  wait_for_partial_file();
  kill(killed, SIGKILL);
  wait_for(killed);
  EXPECT_EQ(partial_files(), 1U);
  EXPECT_EQ(run({"synth", out, "--gigabytes", "0.01"}).code, 0);
  EXPECT_EQ(partial_files(), 0U);
}

TEST_F(Streams, AFullDiskLeavesNothing) {
  const Result full = shell("ulimit -f 100; \"$THALWEG\" synth full.gguf --gigabytes 0.05");
  EXPECT_EQ(full.code, 2) << full.err;
  EXPECT_NE(full.err.find("full.gguf"), std::string::npos) << full.err;
  EXPECT_FALSE(fs::exists(at("full.gguf")));
  EXPECT_EQ(partial_files(), 0U);
}

TEST_F(Streams, AModelThatIsTruncatedWhileInUseIsAnError) {
  fs::copy_file(at("model.gguf"), at("cut.gguf"));
  const pid_t process = start({"generate", "-m", at("cut.gguf"), "-p", "hello", "-n", "30000"}, "");
  for (int i = 0; i < 1000 && read_file(at("stdout")).empty(); ++i) usleep(10'000);
  fs::resize_file(at("cut.gguf"), 100'000);
  const Result cut = wait_for(process);
  EXPECT_EQ(cut.code, 2);
  EXPECT_NE(cut.err.find("cut.gguf"), std::string::npos) << cut.err;
  EXPECT_NE(cut.err.find("truncated"), std::string::npos) << cut.err;
}

TEST_F(Streams, CtrlCEndsAPrefillWith130) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "The ball is in the kitchen. ";
  write_file(at("long.txt"), text);
  const pid_t process = start({"generate", "-m", at("model.gguf"), "-f", at("long.txt"), "--context", "1000000"}, "");
  usleep(1'500'000);
  kill(process, SIGINT);
  const Result stopped = wait_for(process);
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_LE(stopped.out.size(), 1U);
}

TEST_F(Streams, InputWithoutAnEndStopsAtALimit) {
  expect_refusal({"generate", "-m", at("model.gguf"), "-f", "/dev/zero"}, {"/dev/zero", "bytes"});
  const Result chat = shell("\"$THALWEG\" chat --force -m \"$MODEL\" </dev/zero");
  EXPECT_EQ(chat.code, 2);
  EXPECT_NE(chat.err.find("a message has more than 1048576 bytes"), std::string::npos) << chat.err;
}

}  // namespace
}  // namespace thalweg::app
