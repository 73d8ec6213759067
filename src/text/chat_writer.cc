#include "text/chat_writer.h"

#include <utility>

#include "text/strip.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

}  // namespace

void ChatWriter::open(std::string_view role) {
  segments_.push_back({"<|im_start|>", true});
  segments_.push_back({std::string(role), false});
}

void ChatWriter::text(std::string_view text) { segments_.back().text += text; }

void ChatWriter::close() { segments_.push_back({"<|im_end|>\n", true}); }

void ChatWriter::open_answer(std::string_view beginning) {
  segments_.push_back({std::string("<|im_start|>assistant\n").append(beginning), true});
}

std::vector<ChatSegment> ChatWriter::take() { return std::move(segments_); }

std::size_t Conversation::last_question() const {
  const bool trims = format.calls == ToolCallFormat::kXml;
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role != "user") continue;
    const std::string_view content = trims ? strip(messages[i].content) : messages[i].content;
    if (!content.starts_with("<tool_response>") || !content.ends_with("</tool_response>")) return i;
  }
  return messages.size() - 1;
}

SplitAnswer split_answer(const ChatMessage& message, std::string_view content) {
  if (!message.reasoning.empty()) return {message.reasoning, content};
  const std::size_t end = content.find(kEndThink);
  if (end == std::string_view::npos) return {{}, content};
  std::string_view reasoning = strip_breaks_behind(content.substr(0, end));
  if (const std::size_t begin = reasoning.rfind(kThink); begin != std::string_view::npos) {
    reasoning.remove_prefix(begin + kThink.size());
  }
  content.remove_prefix(content.rfind(kEndThink) + kEndThink.size());
  return {strip_breaks_before(reasoning), strip_breaks_before(content)};
}

void write_tools(const Conversation& conversation, ChatWriter& writer) {
  for (const JsonValue& tool : conversation.tools) {
    std::string line = "\n";
    append_json(line, tool);
    writer.text(line);
  }
}

std::size_t write_tool_results(const Conversation& conversation, std::size_t index, bool trimmed, ChatWriter& writer) {
  writer.open("user");
  const std::span<const ChatMessage> messages = conversation.messages;
  for (; index < messages.size() && messages[index].role == "tool"; ++index) {
    writer.text("\n<tool_response>\n");
    writer.text(trimmed ? strip(messages[index].content) : messages[index].content);
    writer.text("\n</tool_response>");
  }
  writer.close();
  return index;
}

JsonValue arguments_of(const ToolCall& call) {
  JsonValue arguments = {.kind = JsonValue::Kind::kObject};
  if (!call.arguments.empty()) arguments = parse_json(call.arguments, "chat_prompt", "arguments");
  if (!arguments.is(JsonValue::Kind::kObject)) {
    throw Error("chat_prompt", "arguments", "a JSON object", "'" + call.arguments.substr(0, 80) + "'");
  }
  return arguments;
}

}  // namespace thalweg::text
