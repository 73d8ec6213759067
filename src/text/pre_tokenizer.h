#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace thalweg::text {

// The patterns that have names: those of Qwen3-Next ("qwen2" in GGUF), Qwen3.5 and 3.6 ("qwen35") and of GPT-2
// ("gpt-2"); an empty pattern for another name.
std::string_view pre_tokenizer_pattern(std::string_view name);

// Cuts text into the words that BPE works on.
class PreTokenizer {
 public:
  // pattern is a regular expression in Oniguruma's syntax, as Hugging Face's files have it; throws Error for one that
  // PCRE2 might read differently. An empty pattern does not cut.
  explicit PreTokenizer(std::string_view pattern);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  // Calls back with the matches and the text between matches, in order. text is valid UTF-8.
  void split(std::string_view text, const std::function<void(std::string_view word)>& take) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// The pattern in PCRE2's syntax, or an Error.
std::string to_pcre2(std::string_view pattern);

}  // namespace thalweg::text
