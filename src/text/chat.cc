#include "text/chat.h"

#include <algorithm>

#include "text/utf8.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";
constexpr std::string_view kEndOfThoughts = "</think>";

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

// The characters that Python's str.strip() removes, as the templates' trim does.
bool is_blank(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view trim(std::string_view text) {
  std::size_t first = text.size();
  std::size_t last = text.size();
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (!is_blank(step.code_point)) {
      first = std::min(first, at);
      last = at + step.length;
    }
    at += step.length;
  }
  return text.substr(first, last - first);
}

std::string_view without_thoughts(std::string_view answer) {
  const std::size_t end = answer.rfind(kEndOfThoughts);
  if (end == std::string_view::npos) return answer;
  answer.remove_prefix(end + kEndOfThoughts.size());
  answer.remove_prefix(std::min(answer.find_first_not_of('\n'), answer.size()));
  return answer;
}

void append_message(ChatFamily family, std::string_view role, std::string_view content,
                    std::vector<ChatSegment>& segments) {
  if (family == ChatFamily::kQwen35) content = trim(content);
  if (role == "assistant" && family != ChatFamily::kQwen3NextInstruct) content = without_thoughts(content);
  segments.push_back({std::string(kStart), true});
  // One segment with the content: a line break at its beginning may form a token with the one before it.
  segments.push_back({std::string(role).append("\n").append(content), false});
  segments.push_back({std::string(kEnd).append("\n"), true});
}

void append_question(ChatFamily family, std::string_view question, std::optional<bool> think,
                     std::vector<ChatSegment>& segments) {
  const bool can = family != ChatFamily::kQwen3NextInstruct;
  const bool must = family == ChatFamily::kQwen3NextThinking;
  if (think && *think && !can) throw Error("chat", "think", "off, this model has no thinking mode", "on");
  if (think && !*think && must) throw Error("chat", "think", "on, this model always thinks", "off");
  append_message(family, "user", question, segments);
  std::string opening = std::string(kStart) + "assistant\n";
  if (can) opening += think.value_or(true) ? "<think>\n" : "<think>\n\n</think>\n\n";
  segments.push_back({std::move(opening), true});
}

}  // namespace

ChatFamily chat_family(std::string_view architecture, std::string_view chat_template) {
  if (starts_with(architecture, "qwen35") || starts_with(architecture, "qwen3_5")) return ChatFamily::kQwen35;
  if (!starts_with(architecture, "qwen3next") && !starts_with(architecture, "qwen3_next")) {
    throw Error("chat", "architecture", "qwen3next, qwen35 or qwen35moe", "'" + std::string(architecture) + "'");
  }
  // The template's source writes line breaks as \n, in two characters.
  for (const std::string_view opening : {"assistant\\n<think>", "assistant\n<think>"}) {
    if (chat_template.find(opening) != std::string_view::npos) return ChatFamily::kQwen3NextThinking;
  }
  return ChatFamily::kQwen3NextInstruct;
}

std::vector<ChatSegment> chat_prompt(ChatFamily family, std::span<const ChatMessage> messages,
                                     std::optional<bool> think) {
  if (messages.empty() || messages.back().role != "user") {
    throw Error("chat", "messages", "a question of the user's at the end",
                messages.empty() ? "none" : "one of '" + messages.back().role + "'");
  }
  std::vector<ChatSegment> segments;
  for (const ChatMessage& message : messages.first(messages.size() - 1)) {
    if (message.role == "system" && &message != messages.data()) {
      throw Error("chat", "messages", "the system's message first", "one after others");
    }
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      throw Error("chat", "messages", "the roles system, user and assistant", "'" + message.role + "'");
    }
    append_message(family, message.role, message.content, segments);
  }
  append_question(family, messages.back().content, think, segments);
  return segments;
}

std::vector<ChatSegment> chat_continuation(ChatFamily family, std::string_view question, bool ended,
                                           std::optional<bool> think) {
  std::vector<ChatSegment> segments = {{ended ? "\n" : std::string(kEnd).append("\n"), true}};
  append_question(family, question, think, segments);
  return segments;
}

std::string chat_text(std::span<const ChatSegment> segments) {
  std::string text;
  for (const ChatSegment& segment : segments) text += segment.text;
  return text;
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatSegment> segments) {
  for (const std::string_view token : {kStart, kEnd}) {
    if (tokenizer.find(token) < 0) {
      throw Error("chat", "tokenizer", "a model made for chats, with " + std::string(token), "none; use generate");
    }
  }
  std::vector<std::int32_t> ids;
  for (const ChatSegment& segment : segments) {
    const std::vector<std::int32_t> more = tokenizer.encode(segment.text, segment.markup);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (const std::int32_t id : {tokenizer.eos(), tokenizer.find(kEnd), tokenizer.find("<|endoftext|>")}) {
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

}  // namespace thalweg::text
