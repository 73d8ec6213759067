#pragma once

#include <optional>
#include <string>

#include "checkpoint/config.h"
#include "io/gguf_metadata.h"
#include "text/tokenizer.h"

namespace thalweg::checkpoint {

// The tokenizer that a GGUF file holds; none if it names no tokenizer at all.
std::optional<text::Tokenizer> read_tokenizer(const io::GgufMetadata& metadata, const std::string& path);

// The one of a Hugging Face folder, from tokenizer.json; none without that file.
std::optional<text::Tokenizer> read_tokenizer(const std::string& folder);

// The folder's chat template: chat_template.jinja, or in tokenizer_config.json; empty without one.
std::string read_chat_template(const std::string& folder);

// Checks that the model knows the tokenizer's tokens, and takes over those that end a text: the tokenizer's own, the
// end of a turn and the end of a document.
void take_end_tokens(ModelConfig& config, const text::Tokenizer& tokenizer);

}  // namespace thalweg::checkpoint
