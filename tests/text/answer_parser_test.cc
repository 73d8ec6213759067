#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "expect_error.h"
#include "golden_strings.h"
#include "text/chat.h"
#include "text/json_value.h"
#include "thalweg/chat.h"

namespace thalweg::text {
namespace {

using Json = nlohmann::json;

constexpr ToolCallFormat kJson = ToolCallFormat::kJson;
constexpr ToolCallFormat kXml = ToolCallFormat::kXml;

constexpr const char* kTools = R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"},
    "maybe": {"type": ["string", "null"]}, "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "color": {"enum": ["red", "green"]}, "plain": {}}}}}])";

struct Parsed {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  bool called = false;

  void add(const AnswerParser::Delta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const AnswerParser::CallDelta& call : delta.calls) {
      if (call.index == calls.size()) {
        EXPECT_FALSE(call.name.empty());
        calls.emplace_back();
      } else {
        EXPECT_TRUE(call.name.empty());
      }
      ASSERT_EQ(call.index + 1, calls.size());
      calls.back().name += call.name;
      calls.back().arguments += call.arguments;
    }
  }

  // For comparisons and messages.
  std::string str() const {
    std::string text = "[" + reasoning + "][" + content + "]";
    for (const ToolCall& call : calls) text += "{" + call.name + "|" + call.arguments + "}";
    return text;
  }
};

// cut(i): whether a new part begins at the byte i.
template <typename Cut>
Parsed parse_cut(ToolCallFormat format, bool thinking, std::string_view text, const Cut& cut) {
  AnswerParser parser(format, thinking, kTools);
  Parsed parsed;
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= text.size(); ++i) {
    if (i < text.size() && !cut(i)) continue;
    parsed.add(parser.push(text.substr(begin, i - begin)));
    begin = i;
  }
  parsed.add(parser.finish());
  parsed.called = parser.called();
  return parsed;
}

Parsed parse(ToolCallFormat format, bool thinking, std::string_view text) {
  return parse_cut(format, thinking, text, [](std::size_t) { return false; });
}

void expect_parsed(ToolCallFormat format, bool thinking, std::string_view text, const std::string& expected) {
  const Parsed whole = parse(format, thinking, text);
  EXPECT_EQ(whole.str(), expected) << text;
  EXPECT_EQ(whole.called, !whole.calls.empty());
  EXPECT_EQ(parse_cut(format, thinking, text, [](std::size_t) { return true; }).str(), expected) << text;
  for (std::size_t at = 1; at < text.size(); ++at) {
    const Parsed parsed = parse_cut(format, thinking, text, [at](std::size_t i) { return i == at; });
    ASSERT_EQ(parsed.str(), expected) << text << " cut at " << at;
  }
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const Parsed parsed = parse_cut(format, thinking, text, [&](std::size_t) { return random() % 4 == 0; });
    ASSERT_EQ(parsed.str(), expected) << text << " in round " << round;
  }
}

TEST(AnswerParser, ReasoningThenContent) {
  for (const ToolCallFormat format : {kJson, kXml}) {
    expect_parsed(format, false, "Hello <b>you</b>", "[][Hello <b>you</b>]");
    expect_parsed(format, true, "Hm.\n\nWell.\n</think>\n\nHello", "[Hm.\n\nWell.][Hello]");
    expect_parsed(format, true, "\n\nHm </thin </think>Hello\n", "[Hm </thin ][Hello\n]");
    expect_parsed(format, true, "cut off </thi", "[cut off </thi][]");
    expect_parsed(format, true, "</think>\n\n", "[][]");
    expect_parsed(format, true, "<tool_call> is a tag.</think>a</think>b", "[<tool_call> is a tag.][a</think>b]");
    expect_parsed(format, true, "<think>\nsaid again\n</think>\n\nx", "[said again][x]");
    expect_parsed(format, false, "\n<think>\nof its own\n</think>\n\nx", "[of its own][x]");
    expect_parsed(format, false, "not at the <think>beginning", "[][not at the <think>beginning]");
    expect_parsed(format, true, "\u4f60\u597d</think>\n\u00e9\U0001f600", "[\u4f60\u597d][\u00e9\U0001f600]");
    expect_parsed(format, false, "", "[][]");
  }
}

TEST(AnswerParser, CallsAsJson) {
  const auto expect = [](std::string_view text, const std::string& expected) {
    expect_parsed(kJson, false, text, expected);
  };
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>";
  expect(call, "[][]{f|{\"n\": 1}}");
  expect("Let me see.\n" + call, "[][Let me see.]{f|{\"n\": 1}}");
  expect("Let me see.\n\n" + call + "\n" + call + "\n", "[][Let me see.\n]{f|{\"n\": 1}}{f|{\"n\": 1}}");
  expect(call + "\nand more", "[][\nand more]{f|{\"n\": 1}}");
  expect("<tool_call>{\"arguments\": {\"a\": [1, {}]} , \"name\":\"f\"}</tool_call>", "[][]{f|{\"a\": [1, {}]} }");
  expect("<tool_call>{\"name\":\"f\"}</tool_call>", "[][]{f|{}}");
  expect("<tool_call>{\"id\": [7], \"name\": \"f\", \"arguments\": {}, \"x\": {\"arguments\": {}}}</tool_call>",
         "[][]{f|{}}");
  expect("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}</tool_call>", "[][]{f|{\"n\": 1}}");
  // What is in a string ends nothing; line breaks that were not escaped are.
  expect("<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\\\"}}<tool_call>\n\"}}</tool_call>",
         "[][]{f|{\"s\": \"</tool_call>\\\"}}<tool_call>\\n\"}}");
  expect("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [-1.5e+3, 0, true, null, \"\\u00e9\"]}}</tool_call>",
         "[][]{f|{\"x\": [-1.5e+3, 0, true, null, \"\\u00e9\"]}}");
}

TEST(AnswerParser, MalformedCallsAsJsonAreContent) {
  for (const std::string text :
       {"a < b, <tool_cal> and <tool_call> are text", "\n<tool_call>\n[1]\n</tool_call>",
        "x\n<tool_call>{\"n\": 1}</tool_call>", "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": 01}</tool_call>", "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"arguments\": {\"n\": 1}}</tool_call>",
        "<tool_call>{\"arguments\": {\"n\": 1e999}, \"name\": \"f\"}", "<tool_call>{\"name\": \"f\", ", "<tool_call>",
        "<tool_call>{}", "<<tool_call", "<tool_call>{\"name\": \"f\"<"}) {
    expect_parsed(kJson, false, text, "[][" + text + "]");
  }
  // Begun calls end where the arguments become malformed.
  expect_parsed(kJson, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1, oops}}</tool_call>.",
                "[][oops}}</tool_call>.]{f|{\"n\": 1, }");
  expect_parsed(kJson, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"cut o", "[][]{f|{\"s\": \"cut o}");
  expect_parsed(kJson, false, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_c", "[][]{f|{}}");
  // The second tag begins a call.
  expect_parsed(kJson, false, "<tool_call>\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "[][<tool_call>\n]{f|{}}");
}

TEST(AnswerParser, CallsAsXml) {
  const auto expect = [](std::string_view text, const std::string& expected) {
    expect_parsed(kXml, false, text, expected);
  };
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto parameter = [](const std::string& key, const std::string& value) {
    return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  };
  expect(call(""), "[][]{f|{}}");
  expect("Let me see.\n\n" + call(parameter("n", "1")), "[][Let me see.]{f|{\"n\": 1}}");
  expect(call(parameter("n", "1")) + "\n" + call("") + "\n", "[][]{f|{\"n\": 1}}{f|{}}");
  expect(call(parameter("s", "1") + parameter("n", "two")), "[][]{f|{\"s\": \"1\", \"n\": \"two\"}}");
  expect(call(parameter("s", "\n a \"q\" \\ </parameter \t\u00e9<</p\n\n")),
         "[][]{f|{\"s\": \"\\n a \\\"q\\\" \\\\ </parameter \\t\u00e9<</p\\n\\n\"}}");
  expect(call(parameter("s", "</function>\n</tool_call>")), "[][]{f|{\"s\": \"</function>\\n</tool_call>\"}}");
  expect(call(parameter("o", "{\"a\":\n[1]}") + parameter("b", "True")), "[][]{f|{\"o\": {\"a\":\n[1]}, \"b\": true}}");
  expect(call(parameter("maybe", "null") + parameter("maybe", "1")), "[][]{f|{\"maybe\": null, \"maybe\": \"1\"}}");
  expect(call(parameter("either", "12") + parameter("color", "1")), "[][]{f|{\"either\": 12, \"color\": \"1\"}}");
  expect(call(parameter("plain", "[1]") + parameter("plain", "x") + parameter("unknown", "1")),
         "[][]{f|{\"plain\": [1], \"plain\": \"x\", \"unknown\": 1}}");
  expect("<tool_call><function=g><parameter=k \">v</parameter></function></tool_call>", "[][]{g|{\"k \\\"\": \"v\"}}");
  expect("<tool_call>\n<function=f>\n" + parameter("s", "") + "</tool_call>.", "[][.]{f|{\"s\": \"\"}}");
}

TEST(AnswerParser, MalformedCallsAsXmlAreContent) {
  for (const std::string text :
       {"<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "a\n\n<tool_call>\n<function=>\n</function>",
        "<tool_call>\n<function=f>\nprose</function>", "<tool_call>\n<function=f", "<tool_call>\n<function=a\nb>",
        "<tool_call>\n<function=f>\n<para", "<tool_call>\n<func<tion>"}) {
    expect_parsed(kXml, false, text, "[][" + text + "]");
  }
  expect_parsed(kXml, false, "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\noops</function>",
                "[][\noops</function>]{f|{\"n\": 1}");
  expect_parsed(kXml, false, "<tool_call>\n<function=f>\n<parameter=\n", "[][<parameter=\n]{f|}");
  expect_parsed(kXml, false, "<tool_call>\n<function=f>\n<parameter=s>\ncut\n</para", "[][]{f|{\"s\": \"cut\\n</para}");
  expect_parsed(kXml, false, "<tool_call>\n<function=f>\n<parameter=n>\n12", "[][]{f|{\"n\": 12}");
  expect_parsed(kXml, false, "<tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
                "[][<tool_call>\n]{f|{}}");
}

TEST(AnswerParser, ArgumentsArriveInParts) {
  AnswerParser parser(kJson, false, kTools);
  const auto push = [&](std::string_view text) {
    Parsed parsed;
    for (const AnswerParser::CallDelta& call : parser.push(text).calls)
      parsed.calls.push_back({call.name, call.arguments});
    return parsed.str();
  };
  EXPECT_EQ(push("<tool_call>\n{\"name\": \"f\", \"arguments\""), "[][]");
  EXPECT_FALSE(parser.called());
  EXPECT_EQ(push(": {\"s"), "[][]{f|{\"s}");
  EXPECT_TRUE(parser.called());
  EXPECT_EQ(push("\": \"ab"), "[][]{|\": \"ab}");
  EXPECT_EQ(push("c\"}"), "[][]{|c\"}}");
  EXPECT_EQ(push("}\n</tool_call>"), "[][]");
}

TEST(AnswerParser, WithoutToolsThereAreNoCalls) {
  const std::string text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  for (const char* tools : {"", "[]"}) {
    AnswerParser parser(kJson, false, tools);
    std::string content = parser.push(text).content;
    content += parser.finish().content;
    EXPECT_EQ(content, text);
    EXPECT_FALSE(parser.called());
  }
  expect_error("tools", [] { AnswerParser(kJson, false, "{"); });
  expect_error("tools", [] { AnswerParser(kJson, false, "3"); });
}

// Python's dump of a JSON text.
std::string canonical(const std::string& json) {
  std::string text;
  append_json(text, parse_json(json, "test", "json"));
  return text;
}

// Tools whose parameters have the types of the arguments.
std::string tools_for(const std::vector<ToolCall>& calls) {
  Json tools = Json::array();
  for (const ToolCall& call : calls) {
    Json properties = Json::object();
    const Json arguments = Json::parse(call.arguments);
    for (const auto& [key, value] : arguments.items()) {
      const char* type = value.is_string()    ? "string"
                         : value.is_boolean() ? "boolean"
                         : value.is_null()    ? "null"
                                              : "object";
      properties[key] = {{"type", type}};
    }
    tools.push_back({{"function", {{"name", call.name}, {"parameters", {{"properties", properties}}}}}});
  }
  return tools.dump();
}

// What chat_prompt writes for an answer, parsed.
void round_trip(const ChatFormat& format, const ChatMessage& answer) {
  const std::vector<ChatMessage> talk = {{"user", "?"}, answer, {"tool", "!"}};
  std::string text = chat_text(chat_prompt(format, talk, {}));
  const std::string opening = "<|im_start|>assistant\n";
  text = text.substr(text.find(opening) + opening.size());
  text.resize(text.find("<|im_end|>"));
  AnswerParser parser(format.calls, false, tools_for(answer.tool_calls));
  Parsed parsed;
  parsed.add(parser.push(text));
  parsed.add(parser.finish());
  ASSERT_EQ(parsed.calls.size(), answer.tool_calls.size()) << text;
  for (std::size_t i = 0; i < parsed.calls.size(); ++i) {
    EXPECT_EQ(parsed.calls[i].name, answer.tool_calls[i].name);
    EXPECT_EQ(canonical(parsed.calls[i].arguments), canonical(answer.tool_calls[i].arguments)) << text;
  }
  if (format.calls == kJson && !answer.content.starts_with('\n') &&
      answer.content.find_first_not_of(" \t\r\n") != std::string::npos) {
    EXPECT_EQ(parsed.content, answer.content);
  }
}

TEST(AnswerParser, ReadsWhatTheTemplatesWrite) {
  const Json goldens = Json::parse(read_text(golden_path("chat.json")));
  std::size_t calls = 0;
  for (const Json& conversation : goldens.at("conversations")) {
    for (const Json& message : conversation.at("messages")) {
      if (!message.contains("tool_calls") || message.dump().find('<') != std::string::npos) continue;
      for (const Json& call : message.at("tool_calls")) {
        const ChatMessage answer = {
            "assistant", message.at("content"), {}, {{call.at(0), call.at(1)}, {"again", "{}"}}};
        round_trip(find_chat_format("qwen3next", ""), answer);
        // A parameter's name is one line.
        if (call.at(1).get<std::string>().find("new\\nline") != std::string::npos) continue;
        round_trip(find_chat_format("qwen35", ""), answer);
        ++calls;
      }
    }
  }
  EXPECT_GT(calls, 30U);
}

}  // namespace
}  // namespace thalweg::text
