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

std::vector<std::int32_t> Model::chat_prompt(std::span<const ChatMessage> messages, std::optional<bool> think) const {
  const text::ChatFamily family = text::chat_family(impl_->config.architecture, impl_->chat_template);
  std::vector<text::ChatMessage> conversation;
  for (const ChatMessage& message : messages) conversation.push_back({message.role, message.content});
  return text::encode_chat(impl_->require_tokenizer(), text::chat_prompt(family, conversation, think));
}

std::vector<std::int32_t> Model::chat_continuation(std::string_view question, std::optional<bool> think) const {
  const text::ChatFamily family = text::chat_family(impl_->config.architecture, impl_->chat_template);
  // generate() does not run the token that ends an answer, so the answer's message is still open.
  return text::encode_chat(impl_->require_tokenizer(), text::chat_continuation(family, question, false, think));
}

}  // namespace thalweg
