#pragma once

// What the formats share: src/text/chat_qwen3_next.cc and chat_qwen35.cc write the messages, chat.cc what the answer
// begins with.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/chat_format.h"
#include "text/json_value.h"
#include "thalweg/chat.h"

namespace thalweg::text {

// Collects segments: between the markup of two control tokens there is one segment of text, because a line break at the
// beginning of a content may form a token with the one before it.
class ChatWriter {
 public:
  void open(std::string_view role);              // <|im_start|>role
  void text(std::string_view text);              // of the open message
  void close();                                  // <|im_end|> and a line break
  void open_answer(std::string_view beginning);  // <|im_start|>assistant, a line break, and the beginning
  std::vector<ChatSegment> take();

 private:
  std::vector<ChatSegment> segments_;
};

struct Conversation {
  const ChatFormat& format;
  std::span<const ChatMessage> messages;
  std::vector<JsonValue> tools;
  bool preserve_thinking;

  // The index of the last question; results of tools may be written as questions, in <tool_response>. If there is no
  // question: of the last message.
  std::size_t last_question() const;
};

struct SplitAnswer {
  std::string_view reasoning;
  std::string_view content;
};

// An answer's reasoning: as the message has it, or within <think> and </think> in the content.
SplitAnswer split_answer(const ChatMessage& message, std::string_view content);

// A line for each tool.
void write_tools(const Conversation& conversation, ChatWriter& writer);
// A message of the user's from the results of one or more calls, the first of them at `index`; `trimmed`: as the
// contents. Returns the index behind them.
std::size_t write_tool_results(const Conversation& conversation, std::size_t index, bool trimmed, ChatWriter& writer);
// A call's arguments; throws Error if they are not a JSON object.
JsonValue arguments_of(const ToolCall& call);

void write_qwen3_next(const Conversation& conversation, ChatWriter& writer);
void write_qwen35(const Conversation& conversation, ChatWriter& writer);

}  // namespace thalweg::text
