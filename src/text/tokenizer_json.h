#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace thalweg::text {

// Hugging Face's tokenizer.json: byte-level BPE, NFC or no normalizer, one regular expression. Throws Error that
// names any other feature of the file. The end of text is <|im_end|>, without it <|endoftext|>.
TokenizerData read_tokenizer_json(const std::string& path);

// From the text of the file; `name` is for errors.
TokenizerData parse_tokenizer_json(std::string_view json, const std::string& name);

}  // namespace thalweg::text
