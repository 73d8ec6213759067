// What commands write replaces nothing that was not meant.

#include "command_line.h"

namespace thalweg::app {
namespace {

class Outputs : public CommandLine {
 protected:
  static void expect_kept(const std::string& file, const std::vector<std::string>& arguments,
                          std::initializer_list<std::string_view> parts) {
    const std::string before = read_file(file);
    ASSERT_FALSE(before.empty()) << file;
    expect_refusal(arguments, parts);
    EXPECT_TRUE(read_file(file) == before) << file;
  }

  static std::string notes() {
    write_file(at("notes.txt"), "what I must not forget\n");
    return at("notes.txt");
  }
};

TEST_F(Outputs, AFileThatIsThereNeedsForce) {
  const std::vector<std::vector<std::string>> commands = {
      {"synth", notes(), "--gigabytes", "0.01"},
      {"quantize", at("model.gguf"), notes(), "Q4_0"},
      {"verify", "--op", "add", "--json", notes()},
      {"bench", "--op", "add", "--seconds", "0.01", "--json", notes()},
  };
  for (std::vector<std::string> command : commands) {
    expect_kept(notes(), command, {"notes.txt", "--force"});
    command.emplace_back("--force");
    const Result forced = run(command);
    EXPECT_EQ(forced.code, 0) << forced.err;
    EXPECT_NE(read_file(at("notes.txt")), "what I must not forget\n") << command.front();
  }
}

TEST_F(Outputs, DevicesAndPipesTakeWhatIsWritten) {
  EXPECT_EQ(run({"verify", "--op", "add", "--json", "/dev/null"}).code, 0);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const Result json = run({"verify", "--op", "add", "--json", "/dev/stderr"});
  EXPECT_EQ(json.code, 0);
  EXPECT_NE(json.err.find("\"op\""), std::string::npos) << json.err;
  const Result full = run({"verify", "--op", "add", "--json", "/dev/full"});
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.err.find("/dev/full: file: expected room to write the file, got No space left"), std::string::npos);
  expect_refusal({"synth", at("missing/model.gguf")}, {"missing/model.gguf", "folder"});
}

// Also with --force, and through links.
TEST_F(Outputs, TheSourceIsNeverReplaced) {
  const std::string model = at("model.gguf");
  expect_kept(model, {"quantize", model, model, "Q4_0", "--force"}, {"model.gguf", "a file that this run reads"});
  fs::create_symlink("model.gguf", at("alias.gguf"));
  expect_kept(model, {"quantize", model, at("alias.gguf"), "Q4_0", "--force"}, {"a file that this run reads"});
  fs::create_hard_link(model, at("second.gguf"));
  expect_kept(model, {"quantize", at("alias.gguf"), at("second.gguf"), "Q4_0", "--force"},
              {"a file that this run reads"});

  fs::create_directory(at("hf"));
  for (const char* file : {"hf/config.json", "hf/tokenizer.json", "hf/model.safetensors"}) {
    write_file(at(file), "{}");
    expect_kept(at(file), {"quantize", at("hf"), at(file), "F16", "--force"}, {file, "a file that this run reads"});
  }
  for (const char* part : {"part-00001-of-00002.gguf", "part-00002-of-00002.gguf"}) write_file(at(part), "GGUF");
  expect_kept(at("part-00002-of-00002.gguf"),
              {"quantize", at("part-00001-of-00002.gguf"), at("part-00002-of-00002.gguf"), "Q8_0", "--force"},
              {"part-00002-of-00002.gguf", "a file that this run reads"});
}

}  // namespace
}  // namespace thalweg::app
