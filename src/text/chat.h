#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace thalweg::text {

// Who writes how. All have turns of <|im_start|>role\ncontent<|im_end|>\n; they differ in thinking.
enum class ChatFamily {
  kQwen3NextInstruct,  // never thinks
  kQwen3NextThinking,  // always thinks
  kQwen35,             // Qwen3.5 and 3.6: thinks unless told not to; blanks around contents are dropped
};

// From the architecture of a GGUF file (qwen3next, qwen35, qwen35moe) or the model_type of a Hugging Face directory
// (qwen3_next, qwen3_5, ...), and the model's own chat template, which alone tells Qwen3-Next's two apart; it may be
// empty. An Error for another architecture.
ChatFamily chat_family(std::string_view architecture, std::string_view chat_template);

struct ChatMessage {
  std::string role;  // "system" (only as the first), "user" or "assistant"
  std::string content;
};

// A part of a prompt. Control tokens count in markup only: a user who types <|im_end|> ends no turn.
struct ChatPiece {
  std::string text;
  bool markup;
};

// The prompt for the answer to the last message, which is the user's. Earlier answers go in without their thoughts, as
// the models were trained. think: nothing for what the family does by itself; an Error if it cannot do what is asked.
std::vector<ChatPiece> chat_prompt(ChatFamily family, std::span<const ChatMessage> messages, std::optional<bool> think);

// What to append to a sequence, its state kept, for the next question. ended: the last answer ended with <|im_end|>,
// and was not cut off. Thoughts stay in the sequence: cheaper than a new prompt, and a little off what the models saw.
std::vector<ChatPiece> chat_continuation(ChatFamily family, std::string_view question, bool ended,
                                         std::optional<bool> think);

std::string chat_text(std::span<const ChatPiece> pieces);
// An Error if the tokenizer has no <|im_start|> and <|im_end|>.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatPiece> pieces);

// The tokens that end an answer: those of <|im_end|>, <|endoftext|> and eos() that there are.
std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer);

}  // namespace thalweg::text
