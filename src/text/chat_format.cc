#include "text/chat_format.h"

#include <algorithm>
#include <initializer_list>

#include "thalweg/error.h"

namespace thalweg::text {
namespace {

bool has(std::string_view text, std::string_view mark) { return text.find(mark) != std::string_view::npos; }

bool has_all(std::string_view text, std::initializer_list<std::string_view> marks) {
  return std::all_of(marks.begin(), marks.end(), [&](std::string_view mark) { return has(text, mark); });
}

// Line breaks in a template's strings are written as \n, in two characters, or as they are.
std::string with_line_breaks(std::string_view source) {
  std::string text(source);
  for (std::size_t at = 0; (at = text.find("\\n", at)) != std::string::npos; ++at) text.replace(at, 2, "\n");
  return text;
}

bool is_name_character(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; }

bool is_known_variable(std::string_view name) {
  static constexpr std::string_view kKnown[] = {
      "ns", "index", "content", "reasoning_content", "tool_call", "args_value", "image_count", "video_count",
      // options
      "enable_thinking", "preserve_thinking",
      // Unsloth's: system messages that are merged, and startswith() and endswith() by hand
      "num_sys", "merged_system", "first", "second", "message", "current_content", "tool_start", "tool_start_length",
      "start_of_message", "tool_end", "tool_end_length", "start_pos", "end_of_message"};
  const std::string_view variable = name.substr(0, name.find('.'));
  return std::find(std::begin(kKnown), std::end(kKnown), variable) != std::end(kKnown);
}

// A template that sets or asks for another variable has rules that no format here has.
bool has_only_known_variables(std::string_view text) {
  for (std::size_t at = 0; (at = text.find(" set ", at)) != std::string_view::npos; at += 5) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at + 5);
    const auto end = std::find_if_not(begin, text.end(), is_name_character);
    if (!is_known_variable({begin, end})) return false;
  }
  for (const std::string_view test : {" is defined", " is undefined", " is not defined"}) {
    for (std::size_t at = 0; (at = text.find(test, at)) != std::string_view::npos; at += test.size()) {
      std::size_t begin = at;
      while (begin > 0 && is_name_character(text[begin - 1])) --begin;
      if (!is_known_variable(text.substr(begin, at - begin))) return false;
    }
  }
  return true;
}

// Calls as JSON, contents as they are.
bool is_qwen3_next(std::string_view text) {
  return has_all(text, {"# Tools\n\nYou may call one or more functions to assist with the user query.",
                        "return a json object with function name and arguments within <tool_call></tool_call> XML tags",
                        "tool | tojson", "tool_call.arguments | tojson", "\n<tool_response>\n"}) &&
         !has(text, "enable_thinking") && !has(text, "preserve_thinking");
}

// Calls as XML, contents trimmed.
bool is_qwen35(std::string_view text) {
  const bool preserve = has(text, "(preserve_thinking is defined and preserve_thinking is true) or");
  return has_all(text,
                 {"# Tools\n\nYou have access to the following functions:\n\n<tools>", "tool | tojson",
                  "<function=example_function_name>", "render_content", "reasoning_content|trim", "last_query_index",
                  "\n<tool_response>\n", "enable_thinking is defined and enable_thinking is"}) &&
         preserve == has(text, "preserve_thinking");
}

ChatFormat qwen3_next(bool thinks, bool splits_reasoning) {
  ChatFormat format;
  format.name = thinks ? "Qwen3-Next Thinking" : "Qwen3-Next Instruct";
  format.thinking = thinks ? ChatFormat::Thinking::kAlways : ChatFormat::Thinking::kNever;
  format.splits_reasoning = splits_reasoning;
  format.omits_empty_reasoning = true;
  return format;
}

ChatFormat qwen35() {
  ChatFormat format;
  format.name = "Qwen3.5";
  format.calls = ToolCallFormat::kXml;
  format.thinking = ChatFormat::Thinking::kOnByDefault;
  format.splits_reasoning = true;
  return format;
}

ChatFormat qwen35_of(std::string_view text) {
  ChatFormat format = qwen35();
  format.preserves_on_request = has(text, "preserve_thinking");
  if (format.preserves_on_request) format.name = "Qwen3.6";
  if (has(text, "enable_thinking is true")) format.thinking = ChatFormat::Thinking::kOffByDefault;
  format.omits_empty_reasoning = has(text, "and reasoning_content %}");
  format.json_arguments = has(text, "args_value | string if args_value is string else args_value | tojson");
  format.merges_system_messages = has(text, "merged_system");
  return format;
}

}  // namespace

ChatFormat find_chat_format(std::string_view architecture, std::string_view chat_template) {
  const std::string text = with_line_breaks(chat_template);
  if (text.empty()) {
    if (architecture.starts_with("qwen35") || architecture.starts_with("qwen3_5")) return qwen35();
    if (architecture.starts_with("qwen3next") || architecture.starts_with("qwen3_next"))
      return qwen3_next(false, false);
    throw Error("chat", "architecture", "qwen3next, qwen35 or qwen35moe; completions still work",
                "'" + std::string(architecture) + "'");
  }
  if (has_only_known_variables(text)) {
    if (is_qwen3_next(text)) return qwen3_next(has(text, "assistant\n<think>\n' }}"), has(text, "last_query_index"));
    if (is_qwen35(text)) return qwen35_of(text);
  }
  throw Error("chat", "tokenizer.chat_template",
              "the template of Qwen3-Next, Qwen3.5 or Qwen3.6; completions still work",
              "another one, that begins with '" + std::string(chat_template.substr(0, 60)) + "'");
}

bool answer_thinks(const ChatFormat& format, std::optional<bool> think) {
  switch (format.thinking) {
    case ChatFormat::Thinking::kNever:
      if (think.value_or(false)) throw Error("chat", "think", "off, this model has no thinking mode", "on");
      return false;
    case ChatFormat::Thinking::kAlways:
      if (!think.value_or(true)) throw Error("chat", "think", "on, this model always thinks", "off");
      return true;
    case ChatFormat::Thinking::kOnByDefault:
      return think.value_or(true);
    case ChatFormat::Thinking::kOffByDefault:
      return think.value_or(false);
  }
  return false;
}

}  // namespace thalweg::text
