#include "decode/model_impl.h"
#include "text/chat.h"
#include "thalweg/error.h"
#include "thalweg/model.h"

namespace thalweg {

const text::Tokenizer& Model::Impl::require_tokenizer() const {
  if (!tokenizer) {
    throw Error(info.path, "tokenizer", "tokenizer.ggml.* in a GGUF file, or tokenizer.json, which text needs",
                "none: this model takes and returns token ids only");
  }
  return *tokenizer;
}

std::vector<std::int32_t> Model::tokenize(std::string_view text, bool parse_special) const {
  return impl_->require_tokenizer().encode(text, parse_special);
}

std::string Model::token_bytes(std::int32_t token) const {
  return std::string(impl_->require_tokenizer().token_bytes(token));
}

std::string Model::detokenize(std::span<const std::int32_t> tokens) const {
  return impl_->require_tokenizer().decode(tokens);
}

ChatPrompt Model::chat_prompt(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  const text::ChatFormat format = text::find_chat_format(impl_->config.architecture, impl_->chat_template);
  const text::Tokenizer& tokenizer = impl_->require_tokenizer();
  ChatPrompt prompt;
  prompt.tokens = text::encode_chat(tokenizer, text::chat_prompt(format, messages, options));
  prompt.boundaries = text::ends_of_messages(tokenizer, prompt.tokens);
  prompt.thinking = text::answer_thinks(format, options.think);
  return prompt;
}

std::vector<std::int32_t> Model::chat_continuation(std::string_view question, std::optional<bool> think) const {
  const text::ChatFormat format = text::find_chat_format(impl_->config.architecture, impl_->chat_template);
  // generate() does not run the token that ends an answer, so the answer's message is still open.
  return text::encode_chat(impl_->require_tokenizer(), text::chat_continuation(format, question, false, think));
}

AnswerParser Model::answer_parser(bool thinking, const ChatOptions& options) const {
  return {tool_call_format(), thinking, options.tools};
}

ToolCallFormat Model::tool_call_format() const {
  return text::find_chat_format(impl_->config.architecture, impl_->chat_template).calls;
}

bool Model::can_answer(bool thinking) const {
  using Thinking = text::ChatFormat::Thinking;
  const Thinking mode = text::find_chat_format(impl_->config.architecture, impl_->chat_template).thinking;
  return mode != (thinking ? Thinking::kNever : Thinking::kAlways);
}

std::string Model::chat_format() const {
  return text::find_chat_format(impl_->config.architecture, impl_->chat_template).name;
}

}  // namespace thalweg
