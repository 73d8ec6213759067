#pragma once

// The program as a user runs it: a fixture with a small synthetic model in a folder of its own.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace thalweg::app {

namespace fs = std::filesystem;

struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_file(const std::string& path, std::string_view text) {
  std::ofstream stream(path, std::ios::binary);
  stream << text;
}

// How often a part occurs.
inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t i = text.find(part); i != std::string::npos; i = text.find(part, i + part.size())) ++found;
  return found;
}

class CommandLine : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = (fs::temp_directory_path() / "thalweg-apps-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
    const Result made = run({"synth", at("model.gguf"), "--gigabytes", "0.02", "--type", "Q8_0"});
    ASSERT_EQ(made.code, 0) << made.err;
  }

  static void TearDownTestSuite() { fs::remove_all(folder); }

  static std::string at(const std::string& file) { return (folder / file).string(); }

  static Result run(std::vector<std::string> arguments, const std::string& input = "") {
    return wait_for(start(std::move(arguments), input));
  }

  // A script for sh, in which $THALWEG is the program, $MODEL the model and $DIR the folder of the tests.
  static Result shell(const std::string& script) {
    const std::string names =
        "THALWEG='" THALWEG_BINARY "'; MODEL='" + at("model.gguf") + "'; DIR='" + folder.string() + "'; cd \"$DIR\"; ";
    return wait_for(start_program("/bin/sh", {"-c", names + script}, ""));
  }

  static pid_t start(std::vector<std::string> arguments, const std::string& input) {
    return start_program(THALWEG_BINARY, std::move(arguments), input);
  }

  static pid_t start_program(const std::string& program, std::vector<std::string> arguments, const std::string& input) {
    write_file(at("stdin"), input);
    arguments.insert(arguments.begin(), program);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, at("stdin").c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, at("stdout").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, at("stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    fs::remove(at("stdout"));
    fs::remove(at("stderr"));
    pid_t process = 0;
    const int failed = posix_spawn(&process, program.c_str(), &files, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    EXPECT_EQ(failed, 0) << "cannot run " << program;
    return process;
  }

  static Result wait_for(pid_t process) {
    Result result;
    int status = 0;
    if (waitpid(process, &status, 0) != process) {
      ADD_FAILURE() << "cannot wait for " << process;
      return result;
    }
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = read_file(at("stdout"));
    result.err = read_file(at("stderr"));
    return result;
  }

  // Waits for output beyond `after` bytes, then presses Ctrl-C.
  static void interrupt(pid_t process, std::size_t after) {
    for (int i = 0; i < 1000 && read_file(at("stdout")).size() <= after; ++i) usleep(10'000);
    EXPECT_GT(read_file(at("stdout")).size(), after);
    kill(process, SIGINT);
  }

  // One line on stderr that holds each of the parts, nothing on stdout, code 2.
  static void expect_refusal(const std::vector<std::string>& arguments, std::initializer_list<std::string_view> parts) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_TRUE(result.err.starts_with("thalweg: ")) << result.err;
    for (std::string_view part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }

  static std::string generate(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate", "-m", at("model.gguf")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.err.find("decode"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("tokens/s"), std::string::npos) << result.err;
    return result.out;
  }

  static inline fs::path folder;
};

}  // namespace thalweg::app
