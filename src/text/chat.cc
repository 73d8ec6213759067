#include "text/chat.h"

#include <algorithm>

#include "text/chat_writer.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

constexpr const char* kOperation = "chat_prompt";

void check(const ChatFormat& format, std::span<const ChatMessage> messages) {
  if (messages.empty()) throw Error(kOperation, "messages", "at least one", "none");
  const std::size_t system_messages = format.merges_system_messages ? 2 : 1;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      throw Error(kOperation, "messages", "the roles system, user, assistant and tool", "'" + role + "'");
    }
    const bool follows = i > 0 && (i >= system_messages || messages[i - 1].role != "system");
    if (role == "system" && format.calls == ToolCallFormat::kXml && follows) {
      throw Error(kOperation, "messages", "the system's message first", "one after others");
    }
    if (role == "tool" && i == 0) {
      throw Error(kOperation, "messages", "a tool's result after the call", "one at the beginning");
    }
  }
  if (const std::string& role = messages.back().role; role != "user" && role != "tool") {
    throw Error(kOperation, "messages", "a question of the user's or a tool's result at the end",
                "one of '" + role + "'");
  }
}

std::vector<JsonValue> tools_of(const ChatOptions& options) {
  if (options.tools.empty()) return {};
  JsonValue tools = parse_json(options.tools, kOperation, "tools");
  if (!tools.is(JsonValue::Kind::kArray)) throw Error(kOperation, "tools", "a JSON list", "another JSON value");
  return std::move(tools.items);
}

void open_answer(const ChatFormat& format, std::optional<bool> think, ChatWriter& writer) {
  const bool thinks = answer_thinks(format, think);
  const bool can = format.thinking != ChatFormat::Thinking::kNever;
  writer.open_answer(thinks ? "<think>\n" : can ? "<think>\n\n</think>\n\n" : "");
}

}  // namespace

std::vector<ChatSegment> chat_prompt(const ChatFormat& format, std::span<const ChatMessage> messages,
                                     const ChatOptions& options) {
  check(format, messages);
  if (options.preserve_thinking.value_or(false) && !format.preserves_on_request) {
    throw Error(kOperation, "preserve_thinking", "off, this model's format has no such mode", "on");
  }
  ChatWriter writer;
  const Conversation conversation = {format, messages, tools_of(options), options.preserve_thinking.value_or(false)};
  if (format.calls == ToolCallFormat::kXml) {
    write_qwen35(conversation, writer);
  } else {
    write_qwen3_next(conversation, writer);
  }
  open_answer(format, options.think, writer);
  return writer.take();
}

std::vector<ChatSegment> chat_continuation(const ChatFormat& format, std::string_view question, bool ended,
                                           std::optional<bool> think) {
  const ChatMessage message = {"user", std::string(question)};
  std::vector<ChatSegment> segments = {{ended ? "\n" : "<|im_end|>\n", true}};
  const std::vector<ChatSegment> more = chat_prompt(format, {&message, 1}, {.think = think});
  segments.insert(segments.end(), more.begin(), more.end());
  return segments;
}

std::string chat_text(std::span<const ChatSegment> segments) {
  std::string text;
  for (const ChatSegment& segment : segments) text += segment.text;
  return text;
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatSegment> segments) {
  for (const std::string_view token : {"<|im_start|>", "<|im_end|>"}) {
    if (tokenizer.find(token) < 0) {
      throw Error(kOperation, "tokenizer", "a model made for chats, with " + std::string(token), "none; use generate");
    }
  }
  std::vector<std::int32_t> ids;
  for (const ChatSegment& segment : segments) {
    const std::vector<std::int32_t> more = tokenizer.encode(segment.text, segment.markup);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

std::vector<std::int64_t> ends_of_messages(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt) {
  const std::int32_t end = tokenizer.find("<|im_end|>");
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
    if (prompt[i] == end) ends.push_back(static_cast<std::int64_t>(i) + 2);  // behind its line break
  }
  return ends;
}

std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (const std::int32_t id : {tokenizer.eos(), tokenizer.find("<|im_end|>"), tokenizer.find("<|endoftext|>")}) {
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

}  // namespace thalweg::text
