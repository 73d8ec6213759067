#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/merges.h"
#include "text/pre_tokenizer.h"
#include "text/token_matcher.h"

namespace thalweg::text {

// Types of tokens, in GGUF's numbers.
enum class TokenType : int { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// A tokenizer as a file describes it; the index of a token is its id. As in GGUF's tokenizer.ggml.*, tokens are written
// in the letters of byte_letters.h, except control and user-defined ones, which are plain text.
struct TokenizerData {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;       // "left right", the first to be merged first
  std::vector<int> token_types;          // TokenType of each token; empty: all are normal
  std::string pre;                       // "qwen2", "qwen35" or "gpt-2"; "regex": the pattern below; "none"
  std::string pattern;                   // read when pre is "regex"
  std::vector<std::int32_t> normalized;  // control and user-defined tokens that are matched after NFC, not before
  bool nfc = true;
  bool ignore_merges = false;  // a word that is a token is not merged from bytes
  int eos = -1;                // -1: the file names none
};

// Byte-level byte-pair encoding. Immutable, so that threads may share one.
class Tokenizer {
 public:
  // Throws Error for inconsistent data: merges of unknown tokens, types of another count, an unknown pre.
  explicit Tokenizer(TokenizerData data);

  Tokenizer(Tokenizer&&) noexcept = default;
  Tokenizer& operator=(Tokenizer&&) noexcept = default;

  // The tokens of text, in which each invalid UTF-8 sequence counts as U+FFFD. Control tokens, such as <|im_end|>, are
  // recognized in the text only with parse_special; user-defined ones always.
  std::vector<std::int32_t> encode(std::string_view text, bool parse_special) const;

  // The bytes of ids, not always whole characters. An id without a token, as models with padded vocabularies may give,
  // has no bytes.
  std::string decode(std::span<const std::int32_t> ids) const;
  std::string_view token_bytes(std::int32_t id) const;

  // The id of a token as TokenizerData writes it; -1 if there is none.
  std::int32_t find(std::string_view token) const;
  bool is_control(std::int32_t id) const;
  std::size_t size() const { return tokens_.size(); }
  std::int32_t eos() const { return eos_; }

 private:
  struct Work;

  bool is_added(std::size_t id) const;
  void read_types(const TokenizerData& data);
  void read_vocabulary();
  Merges read_merges(const TokenizerData& data);
  template <typename Gap>
  void cut(const TokenMatcher& matcher, std::string_view text, Work& work, Gap gap) const;
  void encode_gap(std::string_view text, Work& work) const;
  void encode_words(std::string_view text, Work& work) const;
  void encode_word(std::string_view word, Work& work) const;

  std::vector<std::string> tokens_;  // as in TokenizerData: vocabulary_ points into them
  std::vector<std::string> bytes_;   // the bytes of each
  std::vector<TokenType> types_;
  std::unordered_map<std::string_view, std::int32_t> vocabulary_;
  std::array<std::int32_t, 256> byte_ids_{};
  TokenMatcher raw_matcher_;
  TokenMatcher normalized_matcher_;
  bool nfc_;
  bool ignore_merges_;
  std::int32_t eos_;
  PreTokenizer pre_tokenizer_;
  Merges merges_;
};

// Text from tokens, one at a time: returns whole characters, and keeps an incomplete one until the next token.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // Valid UTF-8: bytes that cannot become a character are U+FFFD.
  std::string push(std::int32_t id);
  // The incomplete character at the end of the text, as U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;
};

}  // namespace thalweg::text
