// Any bytes as an answer, cut anywhere, as tools, as JSON and as a chat template: refused with thalweg::Error, or read
// without losing text, to the same result for every cut.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/json_value.h"
#include "thalweg/chat.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

constexpr std::string_view kTools = R"([{"function": {"name": "f", "parameters": {"properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}, "m": {"type": ["string", "null"]}}}}}])";

void check(bool holds) {
  if (!holds) __builtin_trap();
}

struct Parsed {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;

  void add(const AnswerParser::Delta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const AnswerParser::CallDelta& call : delta.calls) {
      check(call.index == calls.size() || (call.index + 1 == calls.size() && call.name.empty()));
      if (call.index == calls.size()) calls.emplace_back();
      calls.back().name += call.name;
      calls.back().arguments += call.arguments;
    }
  }
};

Parsed parse(ToolCallFormat format, bool thinking, std::string_view text, std::size_t part) {
  AnswerParser parser(format, thinking, kTools);
  Parsed parsed;
  for (std::size_t at = 0; at < text.size(); at += part) parsed.add(parser.push(text.substr(at, part)));
  parsed.add(parser.finish());
  check(parser.called() == !parsed.calls.empty());
  for (const ToolCall& call : parsed.calls) check(!call.name.empty());
  return parsed;
}

// The bytes that are neither blanks nor in <think> and </think>, by their number.
std::map<char, int> count(std::string_view text) {
  std::map<char, int> counts;
  for (const char c : text) {
    if (std::string_view(" \t\r\n<think>/").find(c) == std::string_view::npos) ++counts[c];
  }
  return counts;
}

void parse_answer(std::string_view text, std::uint8_t choice) {
  const ToolCallFormat format = (choice & 1) != 0 ? ToolCallFormat::kXml : ToolCallFormat::kJson;
  const bool thinking = (choice & 2) != 0;
  const Parsed whole = parse(format, thinking, text, std::max<std::size_t>(text.size(), 1));
  for (const std::size_t part : {std::size_t{1}, std::size_t{2} + (choice >> 2)}) {
    const Parsed parsed = parse(format, thinking, text, part);
    check(parsed.reasoning == whole.reasoning && parsed.content == whole.content);
    check(parsed.calls.size() == whole.calls.size());
    for (std::size_t i = 0; i < whole.calls.size(); ++i) {
      check(parsed.calls[i].name == whole.calls[i].name && parsed.calls[i].arguments == whole.calls[i].arguments);
    }
  }
  if (whole.calls.empty()) check(count(whole.reasoning + whole.content) == count(text));
}

void write_prompts(std::string_view text) {
  const std::string json = [&] {
    std::string dumped;
    append_json(dumped, parse_json(text, "fuzz", "json"));
    return dumped;
  }();
  std::string again;
  append_json(again, parse_json(json, "fuzz", "json"));
  check(again == json);
  const std::vector<ChatMessage> messages = {
      {"user", "?"}, {"assistant", json, {}, {{"f", json}}}, {"tool", std::string(text)}};
  for (const char* architecture : {"qwen3next", "qwen35"}) {
    const std::string prompt = chat_text(chat_prompt(find_chat_format(architecture, ""), messages, {}));
    check(prompt.find("</tool_call>") != std::string::npos);
    static_cast<void>(chat_prompt(find_chat_format(architecture, ""), messages, {.tools = json}));
  }
}

template <typename Run>
void run_or_refuse(Run run) {
  try {
    run();
  } catch (const Error&) {
    // Refused.
  }
}

}  // namespace
}  // namespace thalweg::text

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thalweg::text;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  parse_answer(text, *data);
  run_or_refuse([&] { write_prompts(text); });
  run_or_refuse([&] { check(!find_chat_format("", text).name.empty()); });
  run_or_refuse([&] { thalweg::AnswerParser(thalweg::ToolCallFormat::kXml, false, text); });
  return 0;
}
