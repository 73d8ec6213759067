// Calls of tools in both formats: free text before them, the grammar within.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "support.h"
#include "thalweg/chat.h"
#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

constexpr std::string_view kTools = R"([
  {"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "unit": {"type": "string", "enum": ["C", "F"]}, "note": {"type": "string", "maxLength": 9}},
    "required": ["city"]}}},
  {"type": "function", "function": {"name": "now"}}])";

Grammar grammar_of(ToolCallFormat format, ToolChoice choice, std::string_view only = {}, bool parallel = true) {
  return Grammar::tool_calls(kTools, format, choice, only, parallel);
}

const std::string kJsonCall =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"K\u00f6ln\", \"days\": 3}}\n</tool_call>";
const std::string kXmlCall =
    "<tool_call>\n<function=weather>\n<parameter=city>\nK\u00f6ln </b>\n\"x\"\n</parameter>\n<parameter=days>\n12\n"
    "</parameter>\n<parameter=unit>\nF\n</parameter>\n</function>\n</tool_call>";
const std::string kJsonNow = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
const std::string kXmlNow = "<tool_call>\n<function=now>\n</function>\n</tool_call>";

std::string lines(const std::string& first, const std::string& second) {
  std::string text = first;
  return text.append("\n").append(second);
}

TEST(ToolCalls, MayOrMustBeWritten) {
  for (const ToolCallFormat format : {ToolCallFormat::kJson, ToolCallFormat::kXml}) {
    const std::string& call = format == ToolCallFormat::kJson ? kJsonCall : kXmlCall;
    const std::string& now = format == ToolCallFormat::kJson ? kJsonNow : kXmlNow;
    const Grammar may = grammar_of(format, ToolChoice::kAuto);
    for (const std::string& text : {std::string(), std::string("Hello \xff <tool_cal"), call,
                                    lines("Well.", call).append(" So"), lines(call, now)}) {
      EXPECT_TRUE(accepts(may, text)) << text;
    }
    for (const std::string& text : {std::string("<tool_call>"), "a" + call.substr(0, call.size() - 1),
                                    "<tool_call>" + call, call + "<tool_call>x"}) {
      EXPECT_FALSE(accepts(may, text)) << text;
    }
    const Grammar must = grammar_of(format, ToolChoice::kRequired);
    EXPECT_TRUE(accepts(must, call));
    EXPECT_TRUE(accepts(must, lines(call, now)));
    EXPECT_FALSE(accepts(must, ""));
    EXPECT_FALSE(accepts(must, "Well. " + call));
    EXPECT_FALSE(accepts(must, call + " So"));

    const Grammar one = grammar_of(format, ToolChoice::kRequired, "now", false);
    EXPECT_TRUE(accepts(one, now));
    EXPECT_FALSE(accepts(one, call));
    EXPECT_FALSE(accepts(one, lines(now, now)));
    const Grammar at_most_one = grammar_of(format, ToolChoice::kAuto, "", false);
    EXPECT_TRUE(accepts(at_most_one, "Well. " + now));
    EXPECT_FALSE(accepts(at_most_one, lines(now, now)));
  }
}

TEST(ToolCalls, OrJson) {
  for (const ToolCallFormat format : {ToolCallFormat::kJson, ToolCallFormat::kXml}) {
    const std::string& call = format == ToolCallFormat::kJson ? kJsonCall : kXmlCall;
    const std::string& now = format == ToolCallFormat::kJson ? kJsonNow : kXmlNow;
    const std::string_view schema = R"({"type": "object", "properties": {"sure": {"type": "boolean"}},
      "required": ["sure"]})";
    const Grammar grammar = Grammar::json_or_tool_calls(schema, kTools, format);
    for (const std::string& text : {std::string("{\"sure\": true}"), call, lines(call, now)}) {
      EXPECT_TRUE(accepts(grammar, text)) << text;
    }
    for (const std::string& text : {std::string(), std::string("{\"sure\": 1}"), std::string("Well."), "Well. " + call,
                                    lines("{\"sure\": true}", call), lines(call, "{\"sure\": true}")}) {
      EXPECT_FALSE(accepts(grammar, text)) << text;
    }
    const Grammar one = Grammar::json_or_tool_calls("", kTools, format, false);
    EXPECT_TRUE(accepts(one, "{\"any\": [1]}"));
    EXPECT_FALSE(accepts(one, "[1]"));
    EXPECT_TRUE(accepts(one, now));
    EXPECT_FALSE(accepts(one, lines(now, now)));
  }
  EXPECT_THROW(Grammar::json_or_tool_calls(R"({"not": {}})", kTools, ToolCallFormat::kJson), Error);
  EXPECT_THROW(Grammar::json_or_tool_calls("{}", "[]", ToolCallFormat::kJson), Error);
}

TEST(ToolCalls, ValuesBetweenTagsFollowTheSchema) {
  const Grammar grammar = grammar_of(ToolCallFormat::kXml, ToolChoice::kRequired, "weather");
  const auto accepted = [&](const std::string& key, const std::string& value) {
    return accepts(grammar, "<tool_call>\n<function=weather>\n<parameter=city>\nX\n</parameter>\n<parameter=" + key +
                                ">\n" + value + "\n</parameter>\n</function>\n</tool_call>");
  };
  EXPECT_TRUE(accepted("days", "14"));
  EXPECT_FALSE(accepted("days", "15"));
  EXPECT_FALSE(accepted("days", "\"3\""));
  EXPECT_TRUE(accepted("unit", "C"));
  EXPECT_FALSE(accepted("unit", "K"));
  EXPECT_TRUE(accepted("note", "9\nletters"));
  EXPECT_TRUE(accepted("note", ""));
  EXPECT_FALSE(accepted("note", "10 letters"));
  EXPECT_TRUE(accepted("note", "a\n<b> < c"));
  EXPECT_FALSE(accepted("note", "a</b>"));
  EXPECT_FALSE(accepted("city", "Y"));
  EXPECT_FALSE(accepts(grammar, "<tool_call>\n<function=weather>\n</function>\n</tool_call>"));
}

TEST(ToolCalls, RandomCallsParse) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const Grammar grammar = grammar_of(ToolCallFormat::kJson, ToolChoice::kRequired, "", false);
  for (int i = 0; i < 30; ++i) {
    const std::string text = random_text(grammar, small_vocabulary(), random);
    const std::size_t begin = text.find('{');
    const std::size_t end = text.rfind('}');
    ASSERT_NE(begin, std::string::npos) << text;
    const auto call = nlohmann::json::parse(text.substr(begin, end + 1 - begin), nullptr, false);
    ASSERT_TRUE(call.is_object()) << text;
    EXPECT_TRUE(call["name"] == "now" || call["arguments"]["city"].is_string()) << text;
  }
  for (int i = 0; i < 30; ++i)
    random_text(grammar_of(ToolCallFormat::kJson, ToolChoice::kAuto), small_vocabulary(), random);
}

TEST(ToolCalls, FreeTextTakesEveryToken) {
  const Tokens& tokens = small_vocabulary();
  const Grammar grammar = grammar_of(ToolCallFormat::kXml, ToolChoice::kAuto);
  Follower follower(std::make_shared<MaskCache>(grammar.shared(), tokens.vocabulary));
  std::size_t refused = 0;
  for (std::size_t i = 0; i < tokens.texts.size(); ++i) {
    if (!is_allowed(follower.allowed(), static_cast<std::int32_t>(i))) ++refused;
  }
  EXPECT_EQ(refused, 0U);
  for (const char c : std::string_view("<tool_call")) follower.accept(c);
  EXPECT_TRUE(is_allowed(follower.allowed(), tokens.control));
  follower.accept(tokens.control);
  follower.accept('>');
  EXPECT_TRUE(is_allowed(follower.allowed(), 'a'));  // the tag was interrupted
  for (const char c : std::string_view("<tool_call>")) follower.accept(c);
  EXPECT_EQ(all_allowed(follower.allowed()), std::vector<std::int32_t>{'\n'});
}

TEST(ToolCalls, WrongToolsAreRefusedByPath) {
  const auto refused_at = [](std::string_view tools, std::string_view only = {}) -> std::string {
    try {
      Grammar::tool_calls(tools, ToolCallFormat::kJson, ToolChoice::kAuto, only, true);
    } catch (const Error& error) {
      return error.argument();
    }
    return {};
  };
  EXPECT_EQ(refused_at("{}"), "tools");
  EXPECT_EQ(refused_at("[]"), "tools");
  EXPECT_EQ(refused_at("["), "tools");
  EXPECT_EQ(refused_at(R"([{"type": "other"}])"), "tools/0");
  EXPECT_EQ(refused_at(R"([{"type": "function", "function": {}}])"), "tools/0/function/name");
  EXPECT_EQ(refused_at(kTools, "other"), "only");
  EXPECT_EQ(refused_at(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}])"),
            "tools/0/function/parameters");
  EXPECT_EQ(refused_at(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
                           "properties": {"a": {"not": {}}}}}}])"),
            "tools/0/function/parameters/properties/a/not");
  EXPECT_EQ(refused_at(kTools), "");
}

}  // namespace
}  // namespace thalweg::grammar
