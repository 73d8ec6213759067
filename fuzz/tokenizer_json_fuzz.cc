// Any bytes as a tokenizer.json: refused with thalweg::Error, or made into a tokenizer that encodes text, also text
// made of the input's own bytes, and gives it back.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "allocations.h"
#include "text/tokenizer_json.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

void check(bool holds) {
  if (!holds) __builtin_trap();
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

void use(const Tokenizer& tokenizer, std::string_view text, bool comes_back) {
  try {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, true);
    for (const std::int32_t id : ids) check(id >= 0 && static_cast<std::size_t>(id) < tokenizer.size());
    const std::string decoded = tokenizer.decode(ids);
    check(!comes_back || decoded == text);
    StreamDecoder decoder(tokenizer);
    std::string streamed;
    for (const std::int32_t id : ids) streamed += decoder.push(id);
    streamed += decoder.finish();
    check(!is_ascii(decoded) || streamed == decoded);
  } catch (const Error&) {
    // A byte without a token, a pattern that does not end.
  }
}

void run(std::string_view json) {
  std::optional<Tokenizer> tokenizer;
  bool comes_back = true;
  {
    const AllocationLimit limit(json.size());
    const TokenizerData data = parse_tokenizer_json(json, "input");
    // An added token in the letters of bytes reads like text and like bytes at once.
    for (std::size_t id = 0; id < data.tokens.size(); ++id) {
      const bool added = data.token_types[id] == 3 || data.token_types[id] == 4;
      comes_back = comes_back && (!added || is_ascii(data.tokens[id]));
    }
    tokenizer.emplace(data);
  }
  use(*tokenizer, "ab  ba\n'll 12 <|a|>\t!", comes_back);
  use(*tokenizer, "e\u0301\u0323 \u4f60\u597d\U0001f600 \xe2\x82", false);
  use(*tokenizer, json.substr(0, 200), false);
}

}  // namespace
}  // namespace thalweg::text

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    thalweg::text::run({reinterpret_cast<const char*>(data), size});
  } catch (const thalweg::Error&) {
    // Refused.
  }
  return 0;
}
