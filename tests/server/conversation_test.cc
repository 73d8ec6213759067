// What the wire formats' readers share: limits of JSON, conversations, tools.

#include "server/conversation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/bad_request.h"
#include "server/json.h"
#include "server/tools.h"

namespace thalweg::server {
namespace {

TEST(ParseBody, TakesAnObjectOfBoundedSize) {
  EXPECT_EQ(parse_body(R"({"b": 1, "a": 2})").dump(), R"({"b":1,"a":2})");
  for (const char* bad : {"", "{", "[1]", "\"text\"", "{\"a\": 1} x", "{\"a\": \"\xff\"}"}) {
    EXPECT_THROW(parse_body(bad), BadRequest) << bad;
  }
  const std::string deep(128, '[');
  EXPECT_THROW(parse_body("{\"a\": " + deep + std::string(128, ']') + "}"), BadRequest);
  EXPECT_NO_THROW(parse_body("{\"a\": " + deep.substr(1) + std::string(127, ']') + "}"));
  std::string wide = "{\"k0\": 0";
  for (int i = 1; i < 2048; ++i) wide += ", \"k" + std::to_string(i) + "\": 0";
  EXPECT_NO_THROW(parse_body(wide + "}"));
  EXPECT_THROW(parse_body(wide + ", \"more\": 0}"), BadRequest);
}

TEST(Conversation, SortsResultsByTheirCalls) {
  Conversation conversation("messages");
  conversation.add_system("a");
  conversation.add_system("b");
  conversation.add_user("question");
  conversation.add_reasoning("hm");
  conversation.add_answer("I look.");
  conversation.add_call("1", "f", R"({"x": 1})");
  conversation.add_call("2", "g", "");
  conversation.add_result("2", "of g");
  conversation.add_result("1", "of f");
  conversation.add_answer("done");
  const std::vector<ChatMessage> messages = conversation.take();
  ASSERT_EQ(messages.size(), 6U);
  EXPECT_EQ(messages[0].content, "a\n\nb");
  EXPECT_EQ(messages[2].reasoning, "hm");
  EXPECT_EQ(messages[2].content, "I look.");
  ASSERT_EQ(messages[2].tool_calls.size(), 2U);
  EXPECT_EQ(messages[2].tool_calls[1].arguments, "{}");
  EXPECT_EQ(messages[3].role, "tool");
  EXPECT_EQ(messages[3].content, "of f");
  EXPECT_EQ(messages[4].content, "of g");
  EXPECT_EQ(messages[5].role, "assistant");
}

TEST(Conversation, RefusesCallsAndResultsThatDoNotMatch) {
  const auto refused = [](auto build) {
    Conversation conversation("input");
    try {
      conversation.add_user("question");
      build(conversation);
      conversation.take();
    } catch (const BadRequest& error) {
      return error.parameter() == "input";
    }
    return false;
  };
  EXPECT_TRUE(refused([](Conversation& c) { c.add_result("1", "x"); }));
  EXPECT_TRUE(refused([](Conversation& c) { c.add_call("1", "f", "{}"); }));
  EXPECT_TRUE(refused([](Conversation& c) { c.add_call("1", "f", "[1]"); }));
  EXPECT_TRUE(refused([](Conversation& c) {
    c.add_call("1", "f", "{}");
    c.add_call("1", "g", "{}");
  }));
  EXPECT_TRUE(refused([](Conversation& c) {
    c.add_call("1", "f", "{}");
    c.add_result("1", "x");
    c.add_result("1", "y");
  }));
  EXPECT_TRUE(refused([](Conversation& c) {
    c.add_call("1", "f", "{}");
    c.add_user("never mind");
  }));
  EXPECT_FALSE(refused([](Conversation& c) {
    c.add_call("1", "f", "{}");
    c.add_result("1", "x");
  }));
}

TEST(Tools, KeepTheOrderOfAScheme) {
  Tools tools;
  const Json schema = Json::parse(R"({"type": "object", "properties": {"z": {}, "a": {}}})");
  tools.add("f", "does", &schema, false);
  EXPECT_EQ(tools.list.dump(), R"([{"type":"function","function":{"name":"f","description":"does",)"
                               R"("parameters":{"type":"object","properties":{"z":{},"a":{}}}}}])");
  EXPECT_THROW(tools.add("f", "", nullptr, false), BadRequest);
  EXPECT_THROW(tools.add("two words", "", nullptr, false), BadRequest);
  EXPECT_THROW(tools.add("", "", nullptr, false), BadRequest);
}

TEST(Tools, AreChosen) {
  Tools tools;
  tools.add("f", "", nullptr, false);
  const auto chosen = [&](const char* choice) {
    Tools copy = tools;
    apply_tool_choice(Json::parse(choice), copy);
    return copy;
  };
  EXPECT_FALSE(chosen(R"({"tool_choice": "auto"})").required);
  EXPECT_TRUE(chosen(R"({"tool_choice": "none"})").empty());
  EXPECT_TRUE(chosen(R"({"tool_choice": "required"})").required);
  EXPECT_EQ(chosen(R"({"tool_choice": {"type": "function", "function": {"name": "f"}}})").only, "f");
  EXPECT_EQ(chosen(R"({"tool_choice": {"type": "function", "name": "f"}})").only, "f");
  EXPECT_THROW(chosen(R"({"tool_choice": {"type": "function", "name": "g"}})"), BadRequest);
  EXPECT_THROW(chosen(R"({"tool_choice": {"type": "custom", "name": "f"}})"), BadRequest);
  EXPECT_THROW(chosen(R"({"tool_choice": "any"})"), BadRequest);
  tools = {};
  EXPECT_THROW(chosen(R"({"tool_choice": "required"})"), BadRequest);
}

}  // namespace
}  // namespace thalweg::server
