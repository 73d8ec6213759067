#include "model/model_impl.h"
#include "thalweg/error.h"
#include "thalweg/model.h"

namespace thalweg {
const text::Tokenizer& Model::Impl::require_tokenizer() const {
  if (!tokenizer) throw Error(info.path, "tokenizer", "tokenizer.ggml.* in a GGUF file, or tokenizer.json", "none");
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

}  // namespace thalweg
