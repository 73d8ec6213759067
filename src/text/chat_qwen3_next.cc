// Qwen3-Next: contents as they are, calls as JSON.

#include "text/chat_writer.h"
#include "text/strip.h"

namespace thalweg::text {
namespace {

constexpr std::string_view kToolsBegin =
    "# Tools\n\n"
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>";
constexpr std::string_view kToolsEnd =
    "\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML "
    "tags:\n"
    "<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
    "</tool_call>";

void write_message(const ChatMessage& message, ChatWriter& writer) {
  writer.open(message.role);
  writer.text("\n");
  writer.text(message.content);
  writer.close();
}

void write_system(const Conversation& conversation, ChatWriter& writer) {
  const ChatMessage& first = conversation.messages.front();
  const bool given = first.role == "system";
  if (conversation.tools.empty()) {
    if (given) write_message(first, writer);
    return;
  }
  writer.open("system");
  writer.text("\n");
  if (given) writer.text(first.content + "\n\n");
  writer.text(kToolsBegin);
  write_tools(conversation, writer);
  writer.text(kToolsEnd);
  writer.close();
}

void write_call(const ToolCall& call, ChatWriter& writer) {
  std::string text = "<tool_call>\n{\"name\": \"" + call.name + "\", \"arguments\": ";
  append_json(text, arguments_of(call));
  writer.text(text + "}\n</tool_call>");
}

void write_answer(const Conversation& conversation, std::size_t index, std::size_t last_question, ChatWriter& writer) {
  const ChatMessage& message = conversation.messages[index];
  SplitAnswer answer = {{}, message.content};
  if (conversation.format.splits_reasoning) answer = split_answer(message, message.content);
  writer.open("assistant");
  writer.text("\n");
  if (index > last_question && !answer.reasoning.empty()) {
    writer.text("<think>\n");
    writer.text(strip_breaks(answer.reasoning));
    writer.text("\n</think>\n\n");
    writer.text(strip_breaks_before(answer.content));
  } else {
    writer.text(answer.content);
  }
  bool separated = answer.content.empty();
  for (const ToolCall& call : message.tool_calls) {
    if (!separated) writer.text("\n");
    separated = false;
    write_call(call, writer);
  }
  writer.close();
}

}  // namespace

void write_qwen3_next(const Conversation& conversation, ChatWriter& writer) {
  write_system(conversation, writer);
  const std::size_t last_question = conversation.last_question();
  const std::size_t first = conversation.messages.front().role == "system" ? 1 : 0;
  for (std::size_t i = first; i < conversation.messages.size();) {
    const ChatMessage& message = conversation.messages[i];
    if (message.role == "tool") {
      i = write_tool_results(conversation, i, false, writer);
      continue;
    }
    if (message.role == "assistant") {
      write_answer(conversation, i, last_question, writer);
    } else {
      write_message(message, writer);
    }
    ++i;
  }
}

}  // namespace thalweg::text
