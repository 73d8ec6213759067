#pragma once

#include <optional>
#include <string>

#include "checkpoint/config.h"
#include "io/gguf_metadata.h"
#include "text/tokenizer.h"

namespace thalweg::checkpoint {

// The tokenizer of a GGUF file; none if tokenizer.ggml.model is absent, "none" or "no_vocab". Throws Error for a kind
// other than byte-level BPE ("gpt2").
std::optional<text::Tokenizer> read_tokenizer(const io::GgufMetadata& metadata, const std::string& path);

// The tokenizer of a Hugging Face folder, from tokenizer.json; none without that file.
std::optional<text::Tokenizer> read_tokenizer(const std::string& folder);

// The folder's chat template: chat_template.jinja, or in tokenizer_config.json; empty without one.
std::string read_chat_template(const std::string& folder);

// Checks that the model's vocabulary covers the tokenizer's, and adds the tokens that end a text to `config`: the
// tokenizer's own, the end of a message and the end of a document.
void take_end_tokens(ModelConfig& config, const text::Tokenizer& tokenizer);

}  // namespace thalweg::checkpoint
