// Qwen3.5 and Qwen3.6: contents trimmed, calls as XML, and the variants that ChatFormat names.

#include <algorithm>

#include "text/chat_writer.h"
#include "text/strip.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

constexpr std::string_view kToolsBegin =
    "\n# Tools\n\n"
    "You have access to the following functions:\n\n"
    "<tools>";
constexpr std::string_view kToolsEnd =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n"
    "<function=example_function_name>\n"
    "<parameter=example_parameter_1>\n"
    "value_1\n"
    "</parameter>\n"
    "<parameter=example_parameter_2>\n"
    "This is the value for the second parameter\n"
    "that can span\n"
    "multiple lines\n"
    "</parameter>\n"
    "</function>\n"
    "</tool_call>\n\n"
    "<IMPORTANT>\n"
    "Reminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n"
    "</IMPORTANT>";

// Those at the beginning: one, or two where the format merges them.
std::size_t count_system_messages(std::span<const ChatMessage> messages) {
  const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
  return static_cast<std::size_t>(std::find_if_not(messages.begin(), messages.end(), is_system) - messages.begin());
}

void write_system(const Conversation& conversation, std::size_t count, ChatWriter& writer) {
  std::string content;
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) content += '\n';
    content += strip(conversation.messages[i].content);
  }
  if (conversation.tools.empty()) {
    if (count == 0 || (content.empty() && conversation.format.merges_system_messages)) return;
    writer.open("system");
    writer.text("\n" + content);
    writer.close();
    return;
  }
  writer.open("system");
  writer.text(kToolsBegin);
  write_tools(conversation, writer);
  writer.text(kToolsEnd);
  if (!content.empty()) writer.text("\n\n" + content);
  writer.close();
}

void write_call(const ChatFormat& format, const ToolCall& call, ChatWriter& writer) {
  std::string text = "<tool_call>\n<function=" + call.name + ">\n";
  const JsonValue arguments = arguments_of(call);
  for (std::size_t i = 0; i < arguments.items.size(); ++i) {
    const JsonValue& value = arguments.items[i];
    text += "<parameter=" + arguments.keys[i] + ">\n";
    if (format.json_arguments && !value.is(JsonValue::Kind::kString)) {
      append_json(text, value);
    } else {
      append_python_str(text, value);
    }
    text += "\n</parameter>\n";
  }
  writer.text(text + "</function>\n</tool_call>");
}

void write_answer(const Conversation& conversation, std::size_t index, std::size_t last_question, ChatWriter& writer) {
  const ChatMessage& message = conversation.messages[index];
  SplitAnswer answer = split_answer(message, strip(message.content));
  answer.reasoning = strip(answer.reasoning);
  writer.open("assistant");
  writer.text("\n");
  const bool keeps = conversation.preserve_thinking || index > last_question;
  if (keeps && !(conversation.format.omits_empty_reasoning && answer.reasoning.empty())) {
    writer.text("<think>\n");
    writer.text(answer.reasoning);
    writer.text("\n</think>\n\n");
  }
  writer.text(answer.content);
  std::string_view separator = strip(answer.content).empty() ? "" : "\n\n";
  for (const ToolCall& call : message.tool_calls) {
    writer.text(separator);
    separator = "\n";
    write_call(conversation.format, call, writer);
  }
  writer.close();
}

void check_question(const Conversation& conversation, std::size_t last_question) {
  // last_question() found none where the message that it names is not a question either.
  const ChatMessage& message = conversation.messages[last_question];
  const std::string_view content = strip(message.content);
  const bool result = content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
  if (!conversation.format.merges_system_messages && (message.role != "user" || result)) {
    throw Error("chat_prompt", "messages", "a question of the user's", "none");
  }
}

}  // namespace

void write_qwen35(const Conversation& conversation, ChatWriter& writer) {
  const std::size_t last_question = conversation.last_question();
  check_question(conversation, last_question);
  const std::size_t first = count_system_messages(conversation.messages);
  write_system(conversation, first, writer);
  for (std::size_t i = first; i < conversation.messages.size();) {
    const ChatMessage& message = conversation.messages[i];
    if (message.role == "tool") {
      i = write_tool_results(conversation, i, true, writer);
      continue;
    }
    if (message.role == "assistant") {
      write_answer(conversation, i, last_question, writer);
    } else {
      writer.open("user");
      writer.text("\n");
      writer.text(strip(message.content));
      writer.close();
    }
    ++i;
  }
}

}  // namespace thalweg::text
