#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace thalweg::text {

// Hugging Face's tokenizer.json: byte-level BPE, NFC or no normalizer, one regular expression. What the file asks for
// beyond that is refused with an Error that names it. The end of text is <|im_end|>, without it <|endoftext|>.
TokenizerData read_tokenizer_json(const std::string& path);

// The same from the text of the file; name is for messages.
TokenizerData parse_tokenizer_json(std::string_view json, const std::string& name);

}  // namespace thalweg::text
