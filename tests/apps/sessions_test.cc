// `generate --session FILE` loses neither what FILE was nor what it becomes.

#include <sys/stat.h>

#include "command_line.h"

namespace thalweg::app {
namespace {

class Sessions : public CommandLine {
 protected:
  static std::vector<std::string> command(const std::string& session, std::vector<std::string> more = {"-n", "4"}) {
    std::vector<std::string> arguments = {"generate",    "-m",        at("model.gguf"), "-p",
                                          "hello there", "--session", session};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  static void make(const std::string& session) {
    const Result made = run(command(session));
    ASSERT_EQ(made.code, 0) << made.err;
  }

  static bool same(const std::string& file, const std::string& bytes) { return read_file(file) == bytes; }

  // Refused before anything is generated, and the file is as it was.
  static void expect_kept(const std::string& file, const std::vector<std::string>& arguments,
                          std::initializer_list<std::string_view> parts) {
    const std::string before = read_file(file);
    expect_refusal(arguments, parts);
    EXPECT_TRUE(same(file, before)) << file;
  }

  static std::string wait_for_output(pid_t process) {
    for (int i = 0; i < 1000 && read_file(at("stdout")).empty(); ++i) usleep(10'000);
    EXPECT_FALSE(read_file(at("stdout")).empty()) << process;
    return read_file(at("stdout"));
  }

  // A process that has the session and does nothing. Its text may end before it can be stopped: then once more.
  static pid_t start_and_stop(const std::string& session) {
    pid_t process = 0;
    for (int attempt = 0; attempt < 50; ++attempt) {
      process = start(command(session, {"-n", "100"}), "");
      for (int i = 0; i < 10'000 && read_file(session + ".lock").empty(); ++i) usleep(1000);
      kill(process, SIGSTOP);
      int status = 0;
      EXPECT_EQ(waitpid(process, &status, WUNTRACED), process);
      if (WIFSTOPPED(status)) return process;
    }
    ADD_FAILURE() << "no process could be stopped";
    return process;
  }
};

TEST_F(Sessions, NeverReplaceAnotherFile) {
  const std::string notes = at("notes.txt");
  write_file(notes, "what I must not forget\n");
  expect_kept(notes, command(notes), {notes, "a session file", "--session-new"});
  expect_kept(at("model.gguf"), command(at("model.gguf")), {"model.gguf", "a file that this run reads"});
  expect_kept(at("model.gguf"), command(at("model.gguf"), {"--session-new"}), {"a file that this run reads"});
  fs::create_symlink("model.gguf", at("link"));
  expect_kept(at("model.gguf"), command(at("link"), {"--session-new"}), {"a file that this run reads"});
  write_file(at("empty"), "");
  expect_kept(at("empty"), command(at("empty")), {"empty", "--session-new"});

  const std::string session = at("kept.session");
  make(session);
  expect_kept(session, command(session, {"--context", "8"}), {session, "8 tokens", "--session-new"});
  expect_kept(session, command(session, {"--kv-type", "f32"}), {session, "F32", "--session-new"});
  std::string damaged = read_file(session);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  write_file(session, damaged);
  expect_kept(session, command(session), {session, "damaged", "--session-new"});

  ASSERT_EQ(run({"synth", at("other.gguf"), "--gigabytes", "0.01", "--seed", "5"}).code, 0);
  make(at("of_model.session"));
  const std::vector<std::string> other = {"generate", "-m",        at("other.gguf"),      "-p",
                                          "x",        "--session", at("of_model.session")};
  expect_kept(at("of_model.session"), other, {"of_model.session", "this model", "--session-new"});

  expect_refusal(command(folder.string()), {"folder"});
  expect_refusal(command(at("missing/file")), {"missing/file", "folder"});
  expect_refusal(command("/dev/null"), {"/dev/null"});
}

TEST_F(Sessions, BeginAnewBesideTheOldFile) {
  const std::string notes = at("begun.txt");
  write_file(notes, "old");
  write_file(notes + ".1", "older");
  const Result anew = run(command(notes, {"--session-new"}));
  EXPECT_EQ(anew.code, 0) << anew.err;
  EXPECT_NE(anew.err.find("begun.txt.2"), std::string::npos) << anew.err;
  EXPECT_EQ(read_file(notes + ".1"), "older");
  EXPECT_EQ(read_file(notes + ".2"), "old");
  EXPECT_EQ(run(command(notes)).code, 0);
}

TEST_F(Sessions, ArePrivateAndStayWhereTheirLinkLeads) {
  const std::string session = at("private.session");
  make(session);
  struct stat status {};
  ASSERT_EQ(stat(session.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  fs::create_symlink("private.session", at("session.link"));
  make(at("session.link"));
  EXPECT_TRUE(fs::is_symlink(at("session.link")));
  ASSERT_EQ(stat(session.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

TEST_F(Sessions, BelongToOneProcessAtATime) {
  const std::string session = at("shared.session");
  make(session);
  const pid_t first = start_and_stop(session);
  const std::string before = read_file(session);
  const Result second =
      shell("\"$THALWEG\" generate -m \"$MODEL\" -p x --session shared.session >s.out 2>s.err; echo $? >s.code");
  EXPECT_EQ(read_file(at("s.code")), "2\n");
  EXPECT_NE(read_file(at("s.err")).find("in use by process " + std::to_string(first)), std::string::npos)
      << read_file(at("s.err"));
  EXPECT_TRUE(same(session, before));
  kill(first, SIGCONT);
  EXPECT_EQ(wait_for(first).code, 0);
  EXPECT_FALSE(same(session, before));
  EXPECT_FALSE(fs::exists(session + ".lock"));
}

TEST_F(Sessions, AreSavedAtASignal) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, {SIGTERM, 143}, {SIGHUP, 129}}) {
    const std::string session = at("signal.session");
    fs::remove(session);
    const pid_t process = start(command(session, {"-n", "30000"}), "");
    wait_for_output(process);
    kill(process, signal);
    EXPECT_EQ(wait_for(process).code, code);
    EXPECT_EQ(run(command(session)).code, 0) << signal;
  }
}

TEST_F(Sessions, AreSavedWhateverBecomesOfTheOutput) {
  const std::string generate = "\"$THALWEG\" generate -m \"$MODEL\" -p hello --session o.session ";
  struct Stream {
    std::string redirection;
    std::string code;
    std::string tokens = "8";
  };
  for (const Stream& stream : {Stream{"2>/dev/full", "0"}, Stream{"2>&-", "0"}, Stream{">/dev/full", "2"},
                               Stream{">&-", "2"}, Stream{"| head -c 5", "2", "30000"}}) {
    fs::remove(at("o.session"));
    shell("{ " + generate + " -n " + stream.tokens + (stream.redirection[0] == '|' ? "" : " " + stream.redirection) +
          "; echo $? >code; } " + (stream.redirection[0] == '|' ? stream.redirection : ""));
    EXPECT_EQ(read_file(at("code")), stream.code + "\n") << stream.redirection;
    EXPECT_EQ(run(command(at("o.session"))).code, 0) << stream.redirection;
  }
}

// The text so far is printed, the old session stays, and nothing is left beside it.
TEST_F(Sessions, StayWhereTheDiskIsFull) {
  const std::string session = at("full.session");
  make(session);
  const std::string before = read_file(session);
  const Result full = shell("ulimit -f 1; \"$THALWEG\" generate -m \"$MODEL\" -p hello -n 4 --session full.session");
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.err.find("full.session"), std::string::npos) << full.err;
  EXPECT_NE(full.out, "");
  EXPECT_TRUE(same(session, before));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    EXPECT_EQ(entry.path().string().find(".partial-"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace thalweg::app
