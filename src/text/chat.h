#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"
#include "text/tokenizer.h"
#include "thalweg/chat.h"

namespace thalweg::text {

// A segment of a prompt. Control tokens are recognized in markup only: a user who types <|im_end|> does not end the
// message.
struct ChatSegment {
  std::string text;
  bool markup;
};

// The prompt for the answer to the last message, which is the user's or a tool's result: to the character what
// transformers' apply_chat_template writes with the format's template. A message's reasoning is its reasoning_content;
// empty, it counts as absent. Throws Error for an order of messages that the format does not have, for tools and
// arguments that are not JSON, and for a mode that it lacks.
std::vector<ChatSegment> chat_prompt(const ChatFormat& format, std::span<const ChatMessage> messages,
                                     const ChatOptions& options);

// What to append to a sequence for the next question. ended: the last answer ended with <|im_end|>, so that it was not
// cut off. Thoughts stay in the sequence: cheaper than a new prompt, though in training earlier answers had none.
std::vector<ChatSegment> chat_continuation(const ChatFormat& format, std::string_view question, bool ended,
                                           std::optional<bool> think);

std::string chat_text(std::span<const ChatSegment> segments);
// Throws Error if the tokenizer has no <|im_start|> or <|im_end|>.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatSegment> segments);

// The numbers of tokens up to the end of each message: where the next turn's prompt may differ.
std::vector<std::int64_t> ends_of_messages(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt);

// The tokens that end an answer: <|im_end|>, <|endoftext|> and eos(), as far as the tokenizer has them.
std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer);

}  // namespace thalweg::text
