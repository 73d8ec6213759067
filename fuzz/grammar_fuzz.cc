// Any bytes as a JSON Schema, or as a list of tools: refused with thalweg::Error, or compiled into a grammar that
// always leads to an end, whichever tokens the input's own bytes choose.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/masks.h"
#include "thalweg/error.h"
#include "thalweg/grammar.h"

namespace thalweg::grammar {
namespace {

void check(bool holds) {
  if (!holds) __builtin_trap();
}

// Every byte, some longer tokens, and the end.
struct Tokens {
  Tokens() {
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    for (const char* text :
         {"{\"", "\":", "\",\"", "\"}", "}}", "]}", "\\u00", "\xc3\xbc", "\n  ", "<tool_call>\n", "abc"}) {
      texts.emplace_back(text);
    }
    end = static_cast<std::int32_t>(texts.size());
    texts.emplace_back("end");
    vocabulary = std::make_shared<const Vocabulary>(std::vector<std::string_view>(texts.begin(), texts.end()),
                                                    std::vector{end}, std::vector<std::int32_t>());
  }

  std::vector<std::string> texts;
  std::int32_t end = 0;
  std::shared_ptr<const Vocabulary> vocabulary;
};

void follow(const Grammar& grammar, std::string_view choices) {
  static const Tokens tokens;
  constexpr std::size_t kMostTokens = 50;
  Follower follower(std::make_shared<MaskCache>(grammar.shared(), tokens.vocabulary));
  for (std::size_t i = 0; i < kMostTokens; ++i) {
    const std::span<const std::uint32_t> mask = follower.allowed();
    std::vector<std::int32_t> allowed;
    for (std::size_t token = 0; token < tokens.texts.size(); ++token) {
      if ((mask[token / 32] >> token % 32 & 1U) != 0) allowed.push_back(static_cast<std::int32_t>(token));
    }
    check(!allowed.empty());
    const auto choice = static_cast<unsigned char>(choices[i % choices.size()]);
    const std::int32_t token = allowed[choice % allowed.size()];
    check((token == tokens.end) <= follower.is_complete());
    if (token == tokens.end) return;
    follower.accept(token);
  }
}

void run(std::string_view input) {
  if (input.size() < 2) return;
  const auto first = static_cast<unsigned char>(input.front());
  const std::string_view text = input.substr(1);
  const auto format = (first & 1) == 0 ? ToolCallFormat::kJson : ToolCallFormat::kXml;
  const auto choice = (first & 2) == 0 ? ToolChoice::kAuto : ToolChoice::kRequired;
  const bool parallel = (first & 4) == 0;
  if (text.front() != '[') {
    follow(Grammar::json_schema(text), input);
  } else if ((first & 8) == 0) {
    follow(Grammar::tool_calls(text, format, choice, {}, parallel), input);
  } else {
    follow(Grammar::json_or_tool_calls({}, text, format, parallel), input);
  }
}

}  // namespace
}  // namespace thalweg::grammar

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    thalweg::grammar::run({reinterpret_cast<const char*>(data), size});
  } catch (const thalweg::Error&) {
    // Refused.
  }
  return 0;
}
