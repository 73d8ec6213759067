// The benchmarks of conversations and grammars: what they count holds.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "command_line.h"

namespace thalweg::app {
namespace {

const std::string kModel = std::string(THALWEG_MODELS) + "/story-q4_k.gguf";

class BenchEngine : public CommandLine {};

nlohmann::json find(const nlohmann::json& rows, const std::string& cache, const std::string& begin) {
  for (const auto& row : rows) {
    if (row["cache"] == cache && row["case"].get<std::string>().starts_with(begin)) return row;
  }
  ADD_FAILURE() << begin << " with " << cache << " is missing";
  return rows.at(0);
}

void check_rows(const nlohmann::json& rows) {
  ASSERT_EQ(rows.size(), 13U);
  for (const auto& row : rows) {
    EXPECT_EQ(row["asked"], row["found"].get<int>() + row["computed"].get<int>()) << row;
    EXPECT_GT(row["first_token_seconds"], 0) << row;
    if (row["cache"] == "none") {
      EXPECT_EQ(row["found"], 0) << row;
      continue;
    }
    EXPECT_EQ(row["over"], 0) << row;
    EXPECT_LE(row["computed"], row["bound"]) << row;
  }
  const int cold = find(rows, "none", "20 turns")["computed"];
  const int prompts = find(rows, "prompts", "20 turns")["computed"];
  const int answers = find(rows, "answers", "20 turns")["computed"];
  EXPECT_LT(3 * prompts, cold);
  EXPECT_LT(answers + 20 * 10, prompts);
  EXPECT_LE(find(rows, "prompts", "the same and 100")["computed"], 100 + 64);
}

TEST_F(BenchEngine, ConversationsStayBelowTheirBound) {
  const std::string bare = at("bare.gguf");
  ASSERT_EQ(run({"synth", bare, "--gigabytes", "0.004", "--no-tokenizer"}).code, 0);
  const Result result = run({"bench", "--op", "conversation", "-m", kModel, "-m", bare, "--device", "cpu", "--prefill",
                             "3900", "--json", at("talks.json"), "--csv", at("talks.csv")});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json models = nlohmann::json::parse(read_file(at("talks.json")));
  ASSERT_EQ(models.size(), 2U);
  for (const auto& model : models) check_rows(model["results"]);
  EXPECT_EQ(count(read_file(at("talks.csv")), "\n"), 1U + 2 * 13);
  EXPECT_NE(result.out.find("at most 0.05 is wanted"), std::string::npos) << result.out;
  const Result refused = run({"bench", "--op", "conversation", "-m", kModel, "--prefill", "512,1024"});
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("--prefill"), std::string::npos) << refused.err;
  EXPECT_NE(run({"bench", "--op", "conversation"}).err.find("-m"), std::string::npos);
}

TEST_F(BenchEngine, GrammarsCompileAndMaskInTime) {
  const Result result = run({"bench", "--op", "grammar", "-m", kModel, "--device", "cpu", "--json", at("grammar.json"),
                             "--csv", at("grammar.csv")});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(read_file(at("grammar.json")));
  ASSERT_EQ(json["masks"].size(), 10U);
  for (const auto& row : json["masks"]) {
    EXPECT_LT(row["compile_ms"], 200) << row;
    EXPECT_LT(row["again_mean_ms"], 1) << row;
    EXPECT_LE(row["first_mean_ms"], row["first_worst_ms"]) << row;
  }
  const nlohmann::json& decoded = json["models"].at(0)["results"];
  ASSERT_EQ(decoded.size(), 11U);
  for (const auto& row : decoded) {
    EXPECT_GT(row["tokens"], 0) << row;
    EXPECT_GT(row["ms_per_token_without"], 0) << row;
    // Generous, for machines on which other things run; answers of a few tokens take two milliseconds.
    EXPECT_LT(row["more"], row["tokens"] < 20 ? 10 : 1) << row;
  }
  EXPECT_NE(read_file(at("grammar.csv")).find(",enums,compile_ms,"), std::string::npos);
}

}  // namespace
}  // namespace thalweg::app
