// How a command finds its model, other names of options, seeds and --quiet.

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_line.h"

namespace thalweg::app {
namespace {

// A variable of the environment while an object exists.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

class ModelChoice : public CommandLine {
 protected:
  static Result succeed(const std::vector<std::string>& arguments, const std::string& input = "") {
    Result result = run(arguments, input);
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }
};

TEST_F(ModelChoice, IsAnArgumentAnOptionOrAVariable) {
  const std::string model = at("model.gguf");
  write_file(at("text.txt"), "The ball is in the kitchen.");
  write_file(at("set.jsonl"), R"({"prompt": "Where?", "answer": "here"})");
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"generate", {"-p", "hello", "-n", "4", "--temp", "0"}},
      {"chat", {"--force", "-n", "4", "--temp", "0"}},
      {"perplexity", {"-f", at("text.txt")}},
      {"eval", {"--set", at("set.jsonl")}},
      {"inspect", {"--json"}}};
  for (const auto& [command, more] : commands) {
    const auto with = [&, name = command, rest = more](std::vector<std::string> words) {
      words.insert(words.begin(), name);
      words.insert(words.end(), rest.begin(), rest.end());
      return words;
    };
    const std::string expected = succeed(with({"-m", model}), "hello\n").out;
    EXPECT_NE(expected, "");
    EXPECT_EQ(succeed(with({model}), "hello\n").out, expected) << command;
    const Variable variable("THALWEG_MODEL", model);
    EXPECT_EQ(succeed(with({}), "hello\n").out, expected) << command;
    // The command line goes first.
    expect_refusal(with({at("missing.gguf")}), {"missing.gguf"});
    expect_refusal(with({"-m", at("missing.gguf")}), {"missing.gguf"});
    expect_refusal(with({"-m", model, model}), {"FILE", "--model"});
  }
}

TEST_F(ModelChoice, NamesWhatWasTried) {
  for (const char* command : {"generate", "chat", "inspect"}) {
    expect_refusal({command}, {"FILE", "-m (--model)", "THALWEG_MODEL is not set", ".gguf"});
    expect_refusal({command, "-m", ""}, {"-m", "is empty", ".gguf"});
    expect_refusal({command, ""}, {"FILE", "is empty"});
    const Variable empty("THALWEG_MODEL", "");
    expect_refusal({command}, {"THALWEG_MODEL is empty"});
  }
  const Variable missing("THALWEG_MODEL", at("missing.gguf"));
  expect_refusal({"generate", "-p", "a"}, {"missing.gguf"});
}

TEST_F(ModelChoice, NamesOfLlamaCppWork) {
  const std::string model = at("model.gguf");
  const std::vector<std::string> base = {"generate", "-m", model, "-p", "hello there"};
  const auto output = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = base;
    words.insert(words.end(), more.begin(), more.end());
    return succeed(words).out;
  };
  const std::string expected = output({"-n", "9", "--temp", "1.5", "--seed", "7", "--threads", "1", "--context", "64"});
  EXPECT_EQ(output({"--n-predict", "9", "--temperature", "1.5", "-s", "7", "-t", "1", "-c", "64"}), expected);
  EXPECT_EQ(output({"--predict", "9", "--temperature", "1.5", "-s", "7", "--ctx-size", "64"}), expected);
  EXPECT_NE(output({"--predict", "9", "--temperature", "1.5", "-s", "8", "--ctx-size", "64"}), expected);
  expect_refusal({"generate", model, "-p", "The ball is in the kitchen", "--ctx-size", "2"}, {"the context 2"});

  const auto chat = [&](const std::string& option) {
    return succeed({"chat", model, "--force", option, "Be short.", "-n", "8", "--temp", "0"}, "hello\n").out;
  };
  const std::string answer = chat("--system");
  EXPECT_EQ(chat("-sys"), answer);
  EXPECT_EQ(chat("--system-prompt"), answer);
  const std::string help = run({"chat", "--help"}).out;
  for (const char* name : {"-sys", "--system-prompt", "--n-predict", "--ctx-size", "--temperature", "-t,", "-s,"}) {
    EXPECT_NE(help.find(name), std::string::npos) << name;
  }
}

std::string seed_in(const std::string& text) {
  const std::size_t at = text.find("; seed ");
  if (at == std::string::npos) return {};
  return text.substr(at + 7, text.find_first_not_of("0123456789", at + 7) - at - 7);
}

TEST_F(ModelChoice, AnUnsetSeedIsDrawnAndPrintedAndRepeats) {
  const std::string model = at("model.gguf");
  for (const std::string command : {"generate", "chat"}) {
    std::vector<std::string> words = {command, model, "-n", "12", "--temp", "1.5"};
    if (command == "chat") words.emplace_back("--force");  // the model has no chat template
    const Result first = succeed(words, "hello");
    const std::string seed = seed_in(first.err);
    ASSERT_NE(seed, "") << first.err;
    EXPECT_NE(seed_in(succeed(words, "hello").err), seed);
    words.insert(words.end(), {"--seed", seed});
    const Result again = succeed(words, "hello");
    EXPECT_EQ(again.out, first.out);
    EXPECT_EQ(seed_in(again.err), seed);
  }
  // Where nothing is drawn the seed means nothing.
  EXPECT_EQ(seed_in(succeed({"generate", model, "-n", "2", "--temp", "0"}, "hello").err), "");
  const auto json = [&](const std::string& temperature) {
    return nlohmann::json::parse(succeed({"generate", model, "-p", "a", "-n", "2", "--json", "-s",
                                          "18446744073709551615", "--temp", temperature})
                                     .out);
  };
  EXPECT_EQ(json("1")["seed"], 18446744073709551615ULL);
  EXPECT_FALSE(json("0").contains("seed"));
}

TEST_F(ModelChoice, QuietLeavesStderrEmpty) {
  const std::string model = at("model.gguf");
  write_file(at("text.txt"), "The ball is in the kitchen.");
  write_file(at("set.jsonl"), R"({"prompt": "Where?", "answer": "here"})");
  const Variable force("CLICOLOR_FORCE", "1");
  const std::vector<std::vector<std::string>> commands = {
      {"generate", model, "-p", "a", "-n", "3"},         {"chat", model, "--force", "-n", "3"},
      {"perplexity", model, "-f", at("text.txt")},       {"eval", model, "--set", at("set.jsonl")},
      {"quantize", model, at("q.gguf"), "F16"},          {"synth", at("s.gguf"), "--gigabytes", "0.02"},
      {"verify", "--op", "add", "--case", "^[a-c].*1$"}, {"bench", "--op", "add", "--seconds", "0.001"}};
  for (std::vector<std::string> words : commands) {
    words.insert(words.begin() + 1, words.front() == "chat" ? "--quiet" : "-q");
    if (words.front() == "quantize") continue;  // its notes are no progress
    const Result result = run(words, "hello\n");
    EXPECT_EQ(result.err, "") << words.front();
    EXPECT_NE(result.out, "") << words.front();
  }
  // Errors are still reported.
  expect_refusal({"generate", "-q", at("missing.gguf"), "-p", "a"}, {"missing.gguf"});
}

TEST_F(ModelChoice, KeysAndValuesHaveTheTypeThatIsAsked) {
  std::string text;
  for (int i = 0; i < 12; ++i) text += "The ball number " + std::to_string(i * 7) + " is in the kitchen. ";
  write_file(at("text.txt"), text);
  const auto nats = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"perplexity", at("model.gguf"), "-f", at("text.txt"), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return nlohmann::json::parse(succeed(words).out)["nats_per_token"].get<double>();
  };
  const double f16 = nats({"--kv-type", "f16"});
  const double f32 = nats({"--kv-type", "f32"});
  EXPECT_NE(f16, f32);
  EXPECT_NEAR(f16, f32, 0.05);
  EXPECT_EQ(nats({}), f16);
  const double exact = nats({"--exact"});
  EXPECT_EQ(nats({"--exact", "--kv-type", "f32"}), exact);
  EXPECT_NE(nats({"--exact", "--kv-type", "f16"}), exact);
  expect_refusal({"generate", at("model.gguf"), "-p", "a", "--kv-type", "q8"}, {"--kv-type", "f16"});
}

}  // namespace
}  // namespace thalweg::app
