// Thoughts that end when their tokens are spent, of a model of random weights.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "convert/synthesize.h"
#include "thalweg/engine.h"
#include "thalweg/error.h"
#include "thalweg/grammar.h"

namespace thalweg {
namespace {

Model random_model() {
  std::string path = (std::filesystem::temp_directory_path() / "thalweg-budget-XXXXXX.gguf").string();
  const int file = mkstemps(path.data(), 5);
  EXPECT_GE(file, 0) << path;
  close(file);
  convert::SynthOptions synth;
  synth.gigabytes = 0.02;
  convert::synthesize(path, convert::type_mix("Q8_0"), synth);
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 2048;
  Model model = Model::load(path, options);
  std::filesystem::remove(path);  // it stays mapped
  return model;
}

std::int32_t end_of_thoughts(const Engine& engine) {
  for (std::int32_t token = 0; token < engine.model().info().vocabulary; ++token) {
    if (engine.model().token_bytes(token) == "</think>") return token;
  }
  ADD_FAILURE() << "no </think>";
  return -1;
}

Output answer(Engine& engine, std::unique_ptr<TokenConstraint> constraint) {
  Request request;
  request.prompt = engine.model().chat_prompt(std::vector<ChatMessage>{{"user", "Hello"}}, {.think = true}).tokens;
  request.max_tokens = 60;
  request.constraint = std::move(constraint);
  TokenStream stream = engine.stream(std::move(request));
  Output all;
  for (Output output; stream.next(output);) {
    all.text += output.text;
    all.tokens.insert(all.tokens.end(), output.tokens.begin(), output.tokens.end());
    all.finish = output.finish;
    all.error = output.error;
  }
  return all;
}

TEST(ThoughtBudget, EndsThoughtsAfterSoManyTokens) {
  Engine engine(random_model());
  const std::int32_t end = end_of_thoughts(engine);
  const Output endless = answer(engine, nullptr);
  const auto thoughts = std::find(endless.tokens.begin(), endless.tokens.end(), end) - endless.tokens.begin();
  ASSERT_GT(thoughts, 8) << endless.text;
  for (const std::int64_t budget : {0, 1, 7}) {
    const Output output = answer(engine, engine.thought_budget(budget));
    ASSERT_GT(output.tokens.size(), static_cast<std::size_t>(budget) + 1) << output.error;
    EXPECT_TRUE(std::equal(output.tokens.begin(), output.tokens.begin() + budget, endless.tokens.begin()));
    EXPECT_EQ(output.tokens[static_cast<std::size_t>(budget)], end) << budget;
  }
  // Thoughts that end before, and all that follows, are as they would be.
  EXPECT_EQ(answer(engine, engine.thought_budget(1000)).tokens, endless.tokens);
  EXPECT_EQ(answer(engine, engine.thought_budget(thoughts)).tokens, endless.tokens);
}

TEST(ThoughtBudget, AGrammarHoldsBehindThem) {
  Engine engine(random_model());
  const Grammar grammar = Grammar::json_schema(R"({"enum": ["kitchen", "garden"]})");
  const Output output = answer(engine, engine.thought_budget(3, engine.constraint(grammar, true)));
  EXPECT_EQ(output.finish, FinishReason::kEndToken) << output.error;
  const std::string after = output.text.substr(output.text.find("</think>") + 8);
  EXPECT_NE(after.find_first_of("kg"), std::string::npos) << output.text;
  EXPECT_TRUE(after.ends_with("\"kitchen\"") || after.ends_with("\"garden\"")) << output.text;
}

TEST(ThoughtBudget, NeedsATokenThatEndsThoughts) {
  Engine shipped(Model::load(THALWEG_MODEL));
  EXPECT_THROW(shipped.thought_budget(5), Error);
  Engine engine(random_model());
  EXPECT_THROW(engine.thought_budget(-1), Error);
}

}  // namespace
}  // namespace thalweg
