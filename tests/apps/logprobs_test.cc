// generate --logprobs: the model's own distribution, whatever the sampling.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_line.h"

namespace thalweg::app {
namespace {

class Logprobs : public CommandLine {
 protected:
  static nlohmann::json generate_json(std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", at("model.gguf"), "--json"});
    const Result result = run(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  }

  // Of the tokens of a text but the first, as `perplexity` scores them.
  struct Score {
    double sum = 0;
    int tokens = 0;
  };
  static Score score(const std::string& model, const std::string& text) {
    write_file(at("scored.txt"), text);
    const Result result = run({"perplexity", model, "--exact", "-f", at("scored.txt"), "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    const nlohmann::json json = nlohmann::json::parse(result.out);
    const int tokens = json["scored"];
    return {-json["nats_per_token"].get<double>() * tokens, tokens};
  }
};

TEST_F(Logprobs, AreADistributionWithTheGreedyTokenOnTop) {
  const nlohmann::json json = generate_json({"-p", "hello there", "-n", "8", "--logprobs", "5"});
  ASSERT_EQ(json["logprobs"].size(), json["tokens"].size());
  ASSERT_EQ(json["logprobs"].size(), 8U);
  std::string text;
  for (std::size_t i = 0; i < 8; ++i) {
    const nlohmann::json& row = json["logprobs"][i];
    EXPECT_EQ(row["id"], json["tokens"][i]);
    ASSERT_EQ(row["top"].size(), 5U);
    EXPECT_EQ(row["top"][0]["id"], row["id"]);
    EXPECT_EQ(row["top"][0]["logprob"], row["logprob"]);
    EXPECT_EQ(row["top"][0]["text"], row["text"]);
    double sum = 0;
    double last = 0;
    for (const nlohmann::json& top : row["top"]) {
      const double logprob = top["logprob"];
      EXPECT_LE(logprob, last);
      last = logprob;
      sum += std::exp(logprob);
    }
    EXPECT_GT(sum, 0.0);
    EXPECT_LE(sum, 1.0 + 1e-12);
    text += row["text"].get<std::string>();
  }
  EXPECT_EQ(text, json["text"]);
}

TEST_F(Logprobs, OfAllTokensSumToOne) {
  // The synthetic tokenizer has few tokens: all of them fit into the list.
  const nlohmann::json json = generate_json({"-p", "hello", "-n", "2", "--logprobs", "1000"});
  const Result inspected = run({"inspect", "--json", at("model.gguf")});
  const std::size_t vocabulary = nlohmann::json::parse(inspected.out)["vocabulary"];
  for (const nlohmann::json& row : json["logprobs"]) {
    double sum = 0;
    for (const nlohmann::json& top : row["top"]) sum += std::exp(top["logprob"].get<double>());
    EXPECT_EQ(row["top"].size(), std::min<std::size_t>(vocabulary, 1000));
    if (vocabulary <= 1000) {
      EXPECT_NEAR(sum, 1.0, 1e-9);
    } else {
      EXPECT_LT(sum, 1.0);
    }
  }
}

TEST_F(Logprobs, DoNotDependOnTheSampling) {
  // Which token is drawn does; the distribution of the first one does not.
  const auto first = [](const nlohmann::json& json) { return json["logprobs"][0]["top"]; };
  const nlohmann::json greedy = generate_json({"-p", "hello", "-n", "1", "--logprobs", "3"});
  const nlohmann::json drawn = generate_json({"-p", "hello", "-n", "1", "--logprobs", "3", "--temp", "3", "--top-k",
                                              "50", "--repeat-penalty", "2", "--seed", "3"});
  EXPECT_EQ(first(drawn), first(greedy));
  EXPECT_NE(drawn["tokens"], greedy["tokens"]);
  EXPECT_LT(drawn["logprobs"][0]["logprob"], greedy["logprobs"][0]["logprob"]);
  EXPECT_EQ(generate_json({"-p", "hello", "-n", "1", "--logprobs", "0"})["logprobs"][0]["top"].size(), 0U);
  EXPECT_FALSE(greedy["logprobs"][0].contains("bytes"));
}

TEST_F(Logprobs, AgreeWithTheScoreOfTheText) {
  // A trained model: what it writes gives the same tokens again.
  const std::string model = THALWEG_MODELS "/story-q4_k.gguf";
  const std::string prompt = "Anna put the red ball in the kitchen. Tom took the lamp to the attic. Where is the lamp?";
  for (const std::string temperature : {"0", "1"}) {
    const Result result = run({"generate", model, "-p", prompt, "-n", "12", "--json", "--logprobs", "0", "--exact",
                               "--temp", temperature, "--seed", "5"});
    ASSERT_EQ(result.code, 0) << result.err;
    const nlohmann::json json = nlohmann::json::parse(result.out);
    double sum = 0;
    for (const nlohmann::json& row : json["logprobs"]) sum += row["logprob"].get<double>();
    const Score whole = score(model, prompt + json["text"].get<std::string>());
    const Score before = score(model, prompt);
    ASSERT_EQ(whole.tokens - before.tokens, static_cast<int>(json["tokens"].size())) << json["text"];
    EXPECT_GT(json["tokens"].size(), 3U);
    EXPECT_NEAR(sum, whole.sum - before.sum, 1e-5 * static_cast<double>(json["tokens"].size()));
    EXPECT_LT(sum, -1e-3);
  }
}

TEST_F(Logprobs, NeedJsonAndASensibleNumber) {
  expect_refusal({"generate", at("model.gguf"), "-p", "a", "--logprobs", "2"}, {"--logprobs", "--json"});
  expect_refusal({"generate", at("model.gguf"), "-p", "a", "--json", "--logprobs", "-1"}, {"--logprobs", "0 to 1000"});
  expect_refusal({"generate", at("model.gguf"), "-p", "a", "--json", "--logprobs", "x"}, {"--logprobs", "'x'"});
  EXPECT_FALSE(generate_json({"-p", "a", "-n", "1"}).contains("logprobs"));
  // Without text where there is no tokenizer.
  ASSERT_EQ(run({"synth", at("ids.gguf"), "--gigabytes", "0.02", "--no-tokenizer"}).code, 0);
  const Result ids =
      run({"generate", at("ids.gguf"), "--token-ids", "1,2", "-n", "2", "--json", "--logprobs", "2", "-q"});
  ASSERT_EQ(ids.code, 0) << ids.err;
  const nlohmann::json rows = nlohmann::json::parse(ids.out)["logprobs"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["top"].size(), 2U);
  EXPECT_FALSE(rows[0].contains("text"));
}

}  // namespace
}  // namespace thalweg::app
