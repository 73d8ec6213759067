// The commands and their options, on small synthetic models.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "command_line.h"

namespace thalweg::app {
namespace {

TEST_F(CommandLine, EveryCommandHasHelp) {
  for (const char* command :
       {"generate", "chat", "inspect", "quantize", "perplexity", "eval", "synth", "verify", "bench"}) {
    const Result result = run({command, "--help"});
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_NE(result.out.find("-h,--help"), std::string::npos) << result.out;
    EXPECT_NE(run({"--help"}).out.find(command), std::string::npos);
  }
}

// Also for the cases after one whose kernel was selected explicitly.
TEST_F(CommandLine, TheKernelThatTheEnvironmentNamesRuns) {
  const std::string path = at("bench.json");
  setenv("THALWEG_KERNEL", "linear:exact", 1);
  const Result result = run(
      {"bench", "--op", "linear", "--case", "^M1_N2048_K2048_Q(4_K|8_0)_fast$", "--seconds", "0.01", "--json", path});
  unsetenv("THALWEG_KERNEL");
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json rows = nlohmann::json::parse(read_file(path));
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& row : rows) EXPECT_EQ(row["kernel"], "exact");
}

// What does not name a kernel is told, with the name of the variable.
TEST_F(CommandLine, AKernelThatTheEnvironmentMisspellsIsTold) {
  const auto message = [](const char* value) {
    setenv("THALWEG_KERNEL", value, 1);
    const Result result = run({"verify", "--op", "add"});
    unsetenv("THALWEG_KERNEL");
    EXPECT_NE(result.code, 0) << value;
    std::string text = result.out + result.err;
    EXPECT_NE(text.find("THALWEG_KERNEL"), std::string::npos) << text;
    return text;
  };
  EXPECT_NE(message("garbage").find("expected <operation>:<kernel>[,...], got 'garbage'"), std::string::npos);
  EXPECT_NE(message("linear:exact,liner:q8").find("name of an operation before the colon, got 'liner:q8'"),
            std::string::npos);
  EXPECT_NE(message("linear:fastest").find("a kernel of linear after the colon: "), std::string::npos);
}

TEST_F(CommandLine, BenchNamesTheKernelsThatItDoesNotReach) {
  const std::string one = "^M1_N2048_K2048_Q4_K_fast$";
  const Result result = run({"bench", "--op", "linear", "--case", one, "--seconds", "0.01"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("Not timed:"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("  linear/exact: another kernel is chosen; --all-kernels times it\n"), std::string::npos)
      << result.out;
  EXPECT_EQ(result.out.find("  linear/q8: "), std::string::npos) << result.out;
  const Result exact = run({"bench", "--op", "linear", "--case", "^M1_N2048_K2048_Q4_K$", "--seconds", "0.01"});
  ASSERT_EQ(exact.code, 0) << exact.err;
  EXPECT_NE(exact.out.find("  linear/q8: no case reaches it: "), std::string::npos) << exact.out;
}

TEST_F(CommandLine, BenchRunsTheInstructionSetThatIsAskedFor) {
  const std::string listed = run({"operations"}).out;  // "cpu: available avx3_dl avx2 sse4"
  std::istringstream words(listed.substr(listed.find("\ncpu: ") + 1));
  std::string line;
  std::getline(words, line);
  const std::string set = line.substr(line.rfind(' ') + 1);
  const Result result = run({"bench", "--op", "linear", "--case", "^M1_N2048_K2048_Q4_K_fast$", "--seconds", "0.01",
                             "--instruction-set", set});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find(" threads, " + set + "; reads"), std::string::npos) << result.out;
  const Result none = run({"bench", "--op", "add", "--instruction-set", "none"});
  EXPECT_NE(none.code, 0);
  EXPECT_NE(none.err.find("expected an instruction set that this machine can run, got none"), std::string::npos)
      << none.err;
}

// A check that checks nothing is no success.
TEST_F(CommandLine, VerifyFailsWhereNothingOfASelectionRuns) {
  const Result no_case = run({"verify", "--op", "add,l2norm", "--case", "^$"});
  EXPECT_EQ(no_case.code, 1);
  EXPECT_NE(no_case.out.find("NOT RUN  add: no case matches '^$'"), std::string::npos) << no_case.out;
  EXPECT_NE(no_case.out.find("NOT RUN  l2norm: no case matches '^$'"), std::string::npos) << no_case.out;
  EXPECT_EQ(run({"verify", "--op", "add", "--case", "^$", "--allow-skipped"}).code, 0);
  // Offered by the CPU alone; without the executor the reason is another one.
  const Result no_kernel = run({"verify", "--backend", "metal", "--op", "quantize"});
  EXPECT_EQ(no_kernel.code, 1);
  EXPECT_NE(no_kernel.out.find("NOT RUN  quantize: no case ran on metal: "), std::string::npos) << no_kernel.out;
  EXPECT_EQ(run({"verify", "--backend", "metal", "--op", "quantize", "--allow-skipped"}).code, 0);
  EXPECT_EQ(run({"verify", "--backend", "all", "--op", "add"}).code, 0);
}

TEST_F(CommandLine, BenchFailsWhereNothingOfASelectionIsTimed) {
  const Result no_case = run({"bench", "--op", "add,l2norm", "--case", "^$", "--seconds", "0.001"});
  EXPECT_EQ(no_case.code, 1) << no_case.err;
  EXPECT_NE(no_case.out.find("NOT TIMED  add: no case matches '^$'"), std::string::npos) << no_case.out;
  EXPECT_NE(no_case.out.find("NOT TIMED  l2norm: no case matches '^$'"), std::string::npos) << no_case.out;
  EXPECT_NE(no_case.out.find("--allow-skipped"), std::string::npos) << no_case.out;
  EXPECT_EQ(run({"bench", "--op", "add", "--case", "^$", "--seconds", "0.001", "--allow-skipped"}).code, 0);
  // One operation of two is timed.
  const Result one = run({"bench", "--op", "l2norm,swiglu", "--case", "K", "--seconds", "0.001"});
  EXPECT_EQ(one.code, 1) << one.out;
  EXPECT_EQ(one.out.find("NOT TIMED  l2norm"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("NOT TIMED  swiglu: no case matches 'K'"), std::string::npos) << one.out;
  // A backend that is named must run, and "all" takes those that there are.
  const Result no_backend = run({"bench", "--backend", "metal", "--op", "l2norm", "--seconds", "0.001"});
  EXPECT_EQ(no_backend.code, 1);
  EXPECT_NE(no_backend.out.find("NOT TIMED  l2norm: no case was timed on metal: "), std::string::npos)
      << no_backend.out;
  EXPECT_EQ(run({"bench", "--backend", "metal", "--op", "l2norm", "--seconds", "0.001", "--allow-skipped"}).code, 0);
  EXPECT_EQ(run({"bench", "--backend", "all", "--op", "l2norm", "--seconds", "0.001"}).code, 0);
}

TEST_F(CommandLine, VerifyPrintsOneLineForAnOperation) {
  const Result result = run({"verify", "--op", "add,swiglu"});
  ASSERT_EQ(result.code, 0) << result.out;
  for (const std::string name : {"\nadd ", "\nswiglu "}) {
    const std::size_t first = result.out.find(name);
    ASSERT_NE(first, std::string::npos) << result.out;
    EXPECT_EQ(result.out.find(name, first + 1), std::string::npos) << result.out;
  }
}

TEST_F(CommandLine, BadFlagsAreReportedInOneLine) {
  expect_refusal({"sing"}, {"--help"});
  expect_refusal({"generate"}, {"--model"});
  expect_refusal({"generate", "-m", "x", "--temp", "hot"}, {"--temp"});
  expect_refusal({"generate", "-m", "x", "--top-p", "2"}, {"--top-p"});
  expect_refusal({"generate", "-m", "x", "-n", "-5"}, {"--tokens", "from 0 to"});
  expect_refusal({"generate", "-m", "x", "--threads", "-1"}, {"--threads"});
  expect_refusal({"generate", "-m", "x", "-p", "a", "-f", "b"}, {"excludes"});
  expect_refusal({"synth", at("s.gguf"), "--like", "Qwen3-8B"}, {"--like", "Qwen3.5-27B", "Qwen3-8B"});
  expect_refusal({"synth", at("s.gguf"), "--like", "Qwen3.5-27B", "--layers", "6"}, {"--layers", "multiple of 4", "6"});
  expect_refusal({"synth", at("s.gguf"), "--like", "Qwen3.5-27B", "--gigabytes", "1"}, {"excludes", "--gigabytes"});
  expect_refusal({"synth", at("s.gguf"), "--layers", "8"}, {"--layers", "--like"});
  expect_refusal({"chat", "-m", "x", "--think", "maybe"}, {"--think"});
  expect_refusal({"quantize", at("model.gguf"), at("out.gguf"), "Q9_K"}, {"TYPE", "Q4_K_M"});
  expect_refusal({"quantize", at("model.gguf"), at("out.gguf"), "IQ4_XS"}, {"read but not written"});
  expect_refusal({"quantize", at("model.gguf"), at("model.gguf"), "Q4_0"}, {"a file that this run reads"});
}

TEST_F(CommandLine, MissingFilesAreReportedInOneLine) {
  const std::string missing = at("missing.gguf");
  expect_refusal({"generate", "-m", missing, "-p", "a"}, {missing});
  expect_refusal({"chat", "-m", missing}, {missing});
  expect_refusal({"inspect", missing}, {missing});
  expect_refusal({"quantize", missing, at("out.gguf"), "Q8_0"}, {missing});
  expect_refusal({"perplexity", "-m", at("model.gguf"), "-f", at("missing.txt")}, {"missing.txt"});
  expect_refusal({"eval", "-m", at("model.gguf"), "--set", at("missing.jsonl")}, {"missing.jsonl"});
  expect_refusal({"eval", "-m", at("model.gguf"), "--set", at("no*.jsonl")}, {"no*.jsonl", "--set"});
  expect_refusal({"generate", "-m", at("model.gguf"), "-f", at("missing.txt")}, {"missing.txt"});
  expect_refusal({"generate", "-m", at("model.gguf"), "-p", ""}, {"prompt is empty"});
  expect_refusal({"synth", at("no/such/folder/model.gguf"), "--gigabytes", "0.02"}, {"no/such/folder"});
}

TEST_F(CommandLine, DamagedFilesAreRefused) {
  const std::string whole = read_file(at("model.gguf"));
  write_file(at("short.gguf"), whole.substr(0, whole.size() / 2));
  expect_refusal({"generate", "-m", at("short.gguf"), "-p", "a"}, {"short.gguf", "cut off"});
  expect_refusal({"inspect", at("short.gguf")}, {"short.gguf"});
  expect_refusal({"quantize", at("short.gguf"), at("out.gguf"), "Q4_0"}, {"short.gguf"});
  EXPECT_FALSE(fs::exists(at("out.gguf")));
  write_file(at("text.gguf"), "This is not a model.\n");
  expect_refusal({"generate", "-m", at("text.gguf"), "-p", "a"}, {"text.gguf"});
}

TEST_F(CommandLine, QuantizesInspectsAndGenerates) {
  const Result packed = run({"quantize", at("model.gguf"), at("packed.gguf"), "Q4_K_M"});
  ASSERT_EQ(packed.code, 0) << packed.err;
  EXPECT_NE(packed.err.find("packed already (Q8_0)"), std::string::npos) << packed.err;
  EXPECT_LT(fs::file_size(at("packed.gguf")), fs::file_size(at("model.gguf")));
  const Result table = run({"inspect", at("packed.gguf")});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("gated delta rule"), std::string::npos);
  const Result inspected = run({"inspect", "--json", at("packed.gguf")});
  const nlohmann::json info = nlohmann::json::parse(inspected.out);
  EXPECT_EQ(info["architecture"], "qwen35");
  bool found = false;
  for (const nlohmann::json& tensor : info["tensors"]) {
    if (tensor["name"] != "output.weight") continue;
    found = true;
    EXPECT_EQ(tensor["type"], "Q6_K");
    EXPECT_EQ(tensor["operation"], "linear");
    EXPECT_NE(tensor["decode_kernel"], "");
  }
  EXPECT_TRUE(found);
  const Result text = run({"generate", "-m", at("packed.gguf"), "-p", "hello", "-n", "5", "--json"});
  ASSERT_EQ(text.code, 0) << text.err;
  const nlohmann::json generated = nlohmann::json::parse(text.out);
  EXPECT_EQ(generated["prefill"]["tokens"], 5);
  EXPECT_LE(generated["tokens"].size(), 5U);
  EXPECT_GT(generated["decode"]["tokens_per_second"], 0);
}

TEST_F(CommandLine, InspectTakesTheFileInTwoWays) {
  const Result positional = run({"inspect", at("model.gguf")});
  EXPECT_EQ(positional.code, 0) << positional.err;
  const Result option = run({"inspect", "-m", at("model.gguf")});
  EXPECT_EQ(option.code, 0) << option.err;
  EXPECT_EQ(option.out, positional.out);
  EXPECT_EQ(run({"inspect", "--json", "--model", at("model.gguf")}).code, 0);
  expect_refusal({"inspect"}, {"FILE", "--model"});
  expect_refusal({"inspect", at("model.gguf"), "-m", at("model.gguf")}, {"FILE", "--model"});
}

TEST_F(CommandLine, AModelWithoutATokenizerTakesTokenIds) {
  const std::string path = at("ids.gguf");
  const Result made = run({"synth", path, "--gigabytes", "0.02", "--type", "Q8_0", "--no-tokenizer"});
  ASSERT_EQ(made.code, 0) << made.err;
  const Result inspected = run({"inspect", path});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("no tokenizer"), std::string::npos);

  const Result ids = run({"generate", "-m", path, "--token-ids", "10,20,30", "-n", "5"});
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(std::count(ids.out.begin(), ids.out.end(), ','), 4) << ids.out;
  EXPECT_EQ(ids.out.find_first_not_of("0123456789,\n"), std::string::npos) << ids.out;
  const Result json = run({"generate", "-m", path, "--token-ids", "10,20,30", "-n", "5", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json generated = nlohmann::json::parse(json.out);
  EXPECT_EQ(generated["tokens"].size(), 5U);
  EXPECT_FALSE(generated.contains("text"));
  // The same weights with a tokenizer give the same ids.
  EXPECT_EQ(run({"generate", "-m", at("model.gguf"), "--token-ids", "10,20,30", "-n", "5"}).out, ids.out);

  write_file(at("text.txt"), "some text");
  expect_refusal({"generate", "-m", path, "-p", "hello"}, {"ids.gguf", "no tokenizer", "--token-ids"});
  expect_refusal({"chat", "-m", path}, {"ids.gguf", "no tokenizer"});
  expect_refusal({"perplexity", "-m", path, "-f", at("text.txt")}, {"ids.gguf", "no tokenizer"});
  expect_refusal({"generate", "-m", path, "--token-ids", "999999"}, {"tokens", "999999"});
  expect_refusal({"generate", "-m", path, "--token-ids", "1", "-p", "hello"}, {"excludes"});
}

TEST_F(CommandLine, PromptsComeFromAnywhereAndTextRepeats) {
  const std::string text = generate({"-p", "hello there", "-n", "12"});
  EXPECT_EQ(generate({"-p", "hello there", "-n", "12", "--threads", "1"}), text);
  write_file(at("prompt.txt"), "hello there");
  EXPECT_EQ(generate({"-f", at("prompt.txt"), "-n", "12"}), text);
  EXPECT_EQ(run({"generate", "-m", at("model.gguf"), "-n", "12"}, "hello there").out, text);
  const std::vector<std::string> drawn = {"-p", "hello", "-n", "12", "--temp", "1.5", "--top-k", "40", "--seed", "7"};
  EXPECT_EQ(generate(drawn), generate(drawn));
  std::vector<std::string> other = drawn;
  other.back() = "8";
  EXPECT_NE(generate(other), generate(drawn));
}

TEST_F(CommandLine, SessionsContinue) {
  const std::string session = at("a.session");
  std::string whole = generate({"-p", "hello there", "-n", "12"});
  std::string first = generate({"-p", "hello there", "-n", "5", "--session", session});
  std::string second = generate({"-p", "", "-n", "7", "--session", session});
  first.pop_back();  // newline at the end of the output
  EXPECT_EQ(first + second, whole);
}

TEST_F(CommandLine, MeasuresPerplexity) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The ball is in the kitchen. ";
  write_file(at("text.txt"), text);
  const Result result = run({"perplexity", "-m", at("model.gguf"), "-f", at("text.txt"), "--window", "256", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_GT(json["perplexity"], 1.0);
  // Every token but the first of each window.
  const std::int64_t tokens = json["tokens"];
  EXPECT_EQ(json["scored"], tokens - (tokens + 255) / 256);
  expect_refusal({"perplexity", "-m", at("model.gguf"), "-f", at("text.txt"), "--window", "1"}, {"--window"});
}

TEST_F(CommandLine, CountsExactAnswers) {
  write_file(at("set.jsonl"), R"({"prompt": "Where is the ball?", "answer": "in the kitchen", "tokens": 100})"
                              "\n\n"
                              R"({"prompt": "Where is the lamp?", "answer": "in the attic", "tokens": 900})"
                              "\n");
  const Result result = run({"eval", "-m", at("model.gguf"), "--set", at("set.jsonl"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["questions"], 2);
  EXPECT_EQ(json["exact"], 0);  // random weights know nothing
  ASSERT_EQ(json["lengths"].size(), 2U);
  EXPECT_EQ(json["lengths"][0]["tokens_at_most"], 128);
  EXPECT_EQ(json["lengths"][1]["tokens_at_most"], 1024);
  write_file(at("broken.jsonl"), R"({"prompt": "Where is the ball?"})");
  expect_refusal({"eval", "-m", at("model.gguf"), "--set", at("broken.jsonl")}, {"broken.jsonl:1", "answer"});
}

TEST_F(CommandLine, ChatsWithAPipe) {
  const Result result = run({"chat", "--force", "-m", at("model.gguf"), "-n", "4", "--temp", "0"},
                            "hello\nwhere is\\\nthe ball?\n/clear\nhello\n/exit\nno\n");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.err, "decode"), 3U) << result.err;
}

TEST_F(CommandLine, InterruptsEndTheAnswerAndNotTheProgram) {
  const pid_t text = start({"generate", "-m", at("model.gguf"), "-p", "hello", "-n", "30000"}, "");
  interrupt(text, 0);
  const Result generated = wait_for(text);
  EXPECT_EQ(generated.code, 130);
  EXPECT_TRUE(generated.out.ends_with("\n"));
  EXPECT_EQ(count(generated.err, "decode"), 1U) << generated.err;

  const pid_t chat = start({"chat", "--force", "-m", at("model.gguf"), "-n", "15000", "--temp", "0"}, "hello\nhello\n");
  interrupt(chat, 0);
  for (int i = 0; i < 1000 && count(read_file(at("stderr")), "decode") == 0; ++i) usleep(10'000);
  interrupt(chat, read_file(at("stdout")).size());
  const Result chatted = wait_for(chat);
  EXPECT_EQ(chatted.code, 0);
  EXPECT_EQ(count(chatted.err, "decode"), 2U) << chatted.err;
}

}  // namespace
}  // namespace thalweg::app
