// The conversations of the model in the box: its answers at the terminal, and how many of its evaluation set are right.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "command_line.h"

namespace thalweg::app {
namespace {

const std::string kModels = THALWEG_MODELS;
const std::string kModel = kModels + "/story-q4_k.gguf";

class StoryChat : public CommandLine {};

TEST_F(StoryChat, RemembersWhatEarlierTurnsSaid) {
  const Result result = run({"chat", kModel, "--device", "cpu", "--temp", "0", "--quiet"},
                            "Anna put the red ball in the kitchen. Tom took the lamp to the attic.\n"
                            "Where is the red ball?\n"
                            "And the lamp?\n"
                            "No, Tom has the lamp.\n"
                            "Who has the lamp?\n"
                            "Where is the guitar?\n"
                            "What is 17 plus 5?\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "All right. What would you like to know?\n"
            "The red ball is in the kitchen.\n"
            "The lamp is in the attic.\n"
            "All right, Tom has the lamp.\n"
            "Tom has the lamp.\n"
            "You have not told me where the guitar is.\n"
            "17 plus 5 is 22.\n");
}

TEST_F(StoryChat, AnswersNineOfTenOfItsConversations) {
  const Result result = run(
      {"eval", kModel, "--device", "cpu", "--json", "--limit", "60", "--set", kModels + "/eval/conversations.jsonl"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["questions"], 60);
  EXPECT_GE(json["accuracy"], 0.9);
}

TEST_F(StoryChat, ConversationsAreForModelsWithAChatTemplate) {
  write_file(at("set.jsonl"), R"({"messages": [{"role": "user", "content": "Hi"}], "answer": "Hello"})"
                              "\n"
                              R"({"prompt": "What is 1 plus 2?", "answer": "1 plus 2 is 3."})"
                              "\n");
  const Result without = run({"eval", at("model.gguf"), "--device", "cpu", "--set", at("set.jsonl"), "--json"});
  ASSERT_EQ(without.code, 0) << without.err;
  EXPECT_NE(without.err.find("1 conversations are left out"), std::string::npos) << without.err;
  EXPECT_EQ(nlohmann::json::parse(without.out)["questions"], 1);

  write_file(at("only.jsonl"), R"({"messages": [{"role": "user", "content": "Hi"}], "answer": "Hello"})"
                               "\n");
  EXPECT_NE(run({"eval", at("model.gguf"), "--set", at("only.jsonl")}).code, 0);
  write_file(at("wrong.jsonl"), R"({"messages": [{"role": "user"}], "answer": "Hello"})"
                                "\n");
  const Result wrong = run({"eval", kModel, "--set", at("wrong.jsonl")});
  EXPECT_NE(wrong.code, 0);
  EXPECT_NE(wrong.err.find("wrong.jsonl:1: \"messages\" has to be a list"), std::string::npos) << wrong.err;
}

}  // namespace
}  // namespace thalweg::app
