#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace thalweg::text {

// The families' formats. All write <|im_start|>role\ncontent<|im_end|>\n for a message; they differ in thinking.
enum class ChatFamily {
  kQwen3NextInstruct,  // never thinks
  kQwen3NextThinking,  // always thinks
  kQwen35,             // Qwen3.5 and 3.6: thinks by default; trims contents
};

// From the architecture of a GGUF file (qwen3next, qwen35, qwen35moe) or the model_type of a Hugging Face directory
// (qwen3_next, qwen3_5, ...), and the model's chat template, which only distinguishes the two of Qwen3-Next and may be
// empty. Throws Error for another architecture.
ChatFamily chat_family(std::string_view architecture, std::string_view chat_template);

struct ChatMessage {
  std::string role;  // "system" (only as the first), "user" or "assistant"
  std::string content;
};

// A segment of a prompt. Control tokens are recognized in markup only: a user who types <|im_end|> does not end the
// message.
struct ChatSegment {
  std::string text;
  bool markup;
};

// The prompt for the answer to the last message, which is the user's. Earlier answers are written without their
// thoughts, as in training. think: none for the family's default. Throws Error for a mode that the family lacks.
std::vector<ChatSegment> chat_prompt(ChatFamily family, std::span<const ChatMessage> messages,
                                     std::optional<bool> think);

// What to append to a sequence for the next question. ended: the last answer ended with <|im_end|>, so that it was not
// cut off. Thoughts stay in the sequence: cheaper than a new prompt, though in training earlier answers had none.
std::vector<ChatSegment> chat_continuation(ChatFamily family, std::string_view question, bool ended,
                                           std::optional<bool> think);

std::string chat_text(std::span<const ChatSegment> segments);
// Throws Error if the tokenizer has no <|im_start|> or <|im_end|>.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatSegment> segments);

// The tokens that end an answer: <|im_end|>, <|endoftext|> and eos(), as far as the tokenizer has them.
std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer);

}  // namespace thalweg::text
