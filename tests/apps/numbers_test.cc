// Numbers are read whole and within their range, and no message is a library's own.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "command_line.h"

namespace thalweg::app {
namespace {

class Numbers : public CommandLine {
 protected:
  // As expect_refusal(), and the message has none of the words of libraries.
  static void expect_plain_refusal(const std::vector<std::string>& arguments,
                                   std::initializer_list<std::string_view> parts) {
    expect_refusal(arguments, parts);
    const std::string message = run(arguments).err;
    for (const char* word : {"stoull", "basic_filebuf", "basic_ios", "[json.exception", "regex_error",
                             "std::", "filesystem error", "Value ", "Resource temporarily"}) {
      EXPECT_EQ(message.find(word), std::string::npos) << message;
    }
  }
};

TEST_F(Numbers, AreReadWhole) {
  const std::string most = "18446744073709551615";
  for (const char* seed : {"1x", "-1", "18446744073709551616", "1e3", "0x10", "", " 1", "1.5"}) {
    expect_plain_refusal({"verify", "--op", "add", "--seed", seed}, {"--seed", most, "'random'", seed});
    expect_plain_refusal({"generate", "x", "-p", "a", "--seed", seed}, {"--seed", most, seed});
    expect_plain_refusal({"chat", "x", "--seed", seed}, {"--seed", most, seed});
    expect_plain_refusal({"synth", at("x.gguf"), "--seed", seed}, {"--seed", most, seed});
  }
  EXPECT_FALSE(fs::exists(at("x.gguf")));
  // The largest one is a seed, and a leading zero makes no octal number.
  const Result verified = run({"verify", "--op", "add", "--case", "^[a-c]", "--seed", most});
  EXPECT_NE(verified.out.find("seed " + most), std::string::npos) << verified.out << verified.err;
  EXPECT_NE(run({"verify", "--op", "add", "--case", "^[a-c]", "--seed", "010"}).out.find("seed 10\n"),
            std::string::npos);
}

TEST_F(Numbers, StayInTheirRange) {
  for (const char* command : {"verify", "bench", "generate", "quantize", "perplexity"}) {
    for (const char* threads : {"-5", "1025", "2x", "99999999999999999999"}) {
      expect_plain_refusal({command, "--threads", threads}, {"--threads", "from 0 to 1024", threads});
    }
  }
  for (const char* size : {"nan", "inf", "-1", "1e400", "1GB", "0", "1001", ""}) {
    expect_plain_refusal({"synth", at("x.gguf"), "--gigabytes", size}, {"--gigabytes", "from 0.001 to 1000", size});
    expect_plain_refusal({"bench", "--op", "model", "--gigabytes", size}, {"--gigabytes", "from 0.001 to 1000", size});
  }
  EXPECT_FALSE(fs::exists(at("x.gguf")));
  for (const char* seconds : {"nan", "-1", "inf", "1s"}) {
    expect_plain_refusal({"bench", "--op", "add", "--seconds", seconds}, {"--seconds", "from 0 to 86400", seconds});
  }
  expect_plain_refusal({"verify", "--runs", "0"}, {"--runs", "from 1 to"});
  expect_plain_refusal({"generate", "x", "--temp", "nan"}, {"--temp", "from 0 to 100", "nan"});
  expect_plain_refusal({"generate", "x", "--top-p", "nan"}, {"--top-p", "from 0 to 1,"});
  expect_plain_refusal({"generate", "x", "--min-p", "1.5"}, {"--min-p"});
  expect_plain_refusal({"generate", "x", "--top-k", "2.5"}, {"--top-k", "2.5"});
  expect_plain_refusal({"generate", "x", "--repeat-penalty", "0"}, {"--repeat-penalty"});
  expect_plain_refusal({"generate", "x", "-c", "1e9"}, {"--context"});
  expect_plain_refusal({"eval", "x", "--limit", "-1"}, {"--limit"});
  expect_plain_refusal({"eval", "x", "--batch", "0"}, {"--batch", "from 1 to 1024"});
  expect_plain_refusal({"perplexity", "x", "-f", "y", "--window", "1k"}, {"--window", "1k"});
}

TEST_F(Numbers, RegularExpressionsAreChecked) {
  for (const char* command : {"verify", "bench"}) {
    for (const std::string pattern : {"(", "[", "a{99999999}", "*", "\\"}) {
      expect_plain_refusal({command, "--case", pattern}, {"--case", "'", "regular expression"});
    }
    expect_plain_refusal({command, "--case", std::string(100'000, '(')}, {"--case", "at most 1000"});
  }
}

// Metal has no measure of its memory's speed: the program called one nevertheless, and crashed.
TEST_F(Numbers, BackendsWithoutAKnownSpeedAreNotTimed) {
  const Result result = run({"bench", "--backend", "metal", "--op", "l2norm", "--seconds", "0.001"});
  EXPECT_EQ(result.code, 1) << result.out << result.err;
  EXPECT_NE(result.out.find("metal: skipped, "), std::string::npos) << result.out;
  const Result all = run({"bench", "--backend", "all", "--op", "l2norm", "--seconds", "0.001"});
  EXPECT_EQ(all.code, 0) << all.out << all.err;
  for (const char* suite : {"decode", "published", "experts", "moe"}) {
    const Result timed = run({"bench", "--backend", "metal", "--suite", suite});
    EXPECT_TRUE(timed.code == 1 || timed.code == 2) << suite << timed.code;
    EXPECT_NE((timed.out + timed.err).find("metal"), std::string::npos) << timed.out << timed.err;
  }
}

TEST_F(Numbers, FilesThatCannotBeReadAreNamed) {
  const std::string model = at("model.gguf");
  const std::string inside = model + "/text.txt";
  fs::create_directory(at("empty"));
  fs::create_symlink("loop", at("loop"));
  for (const std::string& path : {at("empty"), inside, at("loop"), at("nothing")}) {
    expect_plain_refusal({"generate", model, "-f", path}, {"cannot read " + path + ": "});
    expect_plain_refusal({"perplexity", model, "-f", path}, {"cannot read " + path + ": "});
  }
  expect_plain_refusal({"eval", model, "--set", at("empty")}, {at("empty"), "--set"});
  expect_plain_refusal({"eval", model, "--set", inside}, {inside});
  expect_plain_refusal({"eval", model, "--set", at("loop")}, {at("loop")});
  expect_plain_refusal({"verify", "--op", "add", "--case", "^a", "--allow-skipped", "-m", "x"}, {"-m"});
  for (const std::string& path : {at("empty"), inside, at("loop")}) {
    const Result result = run({"verify", "--op", "add", "--json", path});
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(result.err.starts_with("thalweg: " + path + ": file: expected ")) << result.err;
    expect_plain_refusal({"generate", path, "-p", "a"}, {path});
    expect_plain_refusal({"inspect", path}, {path});
  }
}

TEST_F(Numbers, DamagedQuestionsAreNamedWithTheirLine) {
  const std::string good = R"({"prompt": "Where?", "answer": "here", "tokens": 9})";
  for (const std::string bad :
       {R"({"prompt": "a")", R"({"prompt": 3, "answer": "b"})", "[]", "null", "\xff\xfe",
        R"({"prompt": "a", "answer": "b", "tokens": 1e99})", R"({"prompt": "a", "prompt": "b"})"}) {
    write_file(at("set.jsonl"), std::string(good).append("\n\n").append(bad).append("\n"));
    expect_plain_refusal({"eval", at("model.gguf"), "--set", at("set.jsonl")}, {"set.jsonl:3: "});
  }
  write_file(at("set.jsonl"), "\n \n");
  expect_plain_refusal({"eval", at("model.gguf"), "--set", at("set.jsonl")}, {"set.jsonl: "});
}

TEST_F(Numbers, ThreadsThatTheSystemRefusesAreNamed) {
  // A limit on memory refuses threads to everybody, root included: each takes a stack of four gigabytes.
  const auto limited = [](const std::string& words) {
    write_file(at("limited"), "ulimit -s 4000000 && ulimit -v 12000000 && exec " THALWEG_BINARY " " + words + " >" +
                                  at("answer") + " 2>&1\n");
    const int status = std::system(("bash " + at("limited")).c_str());
    return Result{WEXITSTATUS(status), read_file(at("answer")), ""};
  };
  const Result version = limited("--version");
  if (version.code != 0) GTEST_SKIP() << "no such limits here, or a sanitizer that needs more: " << version.out;
  const Result result = limited("generate " + at("model.gguf") + " -p hello -n 2 --threads 64");
  EXPECT_EQ(result.code, 2) << result.out;
  EXPECT_EQ(count(result.out, "\n"), 1U) << result.out;
  for (const char* part : {"thalweg: ", "threads", "ulimit -u", "fewer"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  }
  EXPECT_EQ(limited("generate " + at("model.gguf") + " -p hello -n 2 --threads 1").code, 0);
  // A failure of one case, and not of those after it for another reason.
  const Result verified = limited("verify --op mul_mv_id --threads 64");
  EXPECT_EQ(verified.code, 1) << verified.out;
  EXPECT_NE(verified.out.find("ulimit -u"), std::string::npos) << verified.out;
}

}  // namespace
}  // namespace thalweg::app
