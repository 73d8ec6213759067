#include "text/tokenizer.h"

#include <deque>
#include <limits>
#include <utility>

#include "text/byte_letters.h"
#include "text/normalize.h"
#include "text/utf8.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

// Longer words are rare, and not worth keeping.
constexpr std::size_t kLongestKeptWord = 64;
constexpr std::size_t kMostKeptWords = 1U << 20;

std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 100)) + "'"; }

std::string pattern_of(const TokenizerData& data) {
  if (data.pre == "regex" || data.pre == "none") return data.pre == "regex" ? data.pattern : std::string();
  const std::string_view pattern = pre_tokenizer_pattern(data.pre);
  if (pattern.empty()) throw Error("tokenizer", "pre", "qwen2, qwen35, gpt-2, regex or none", quoted(data.pre));
  return std::string(pattern);
}

}  // namespace

// One call of encode.
struct Tokenizer::Work {
  // The range of a word's tokens in ids.
  struct Kept {
    std::size_t first;
    std::size_t count;
  };

  bool parse_special = false;
  std::vector<std::int32_t> ids;
  std::deque<std::string> normalized;  // kept, because the words below point into them
  std::unordered_map<std::string_view, Kept> words;
  std::vector<std::int32_t> word;
  Merges::Scratch scratch;
};

Tokenizer::Tokenizer(TokenizerData data)
    : tokens_(std::move(data.tokens)),
      nfc_(data.nfc),
      ignore_merges_(data.ignore_merges),
      eos_(data.eos),
      pre_tokenizer_(pattern_of(data)),
      merges_({}) {
  if (tokens_.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error("tokenizer", "tokens", "at most 2^31 - 1", std::to_string(tokens_.size()));
  }
  if (eos_ < -1 || eos_ >= static_cast<std::int64_t>(tokens_.size())) {
    throw Error("tokenizer", "eos", "the id of one of " + std::to_string(tokens_.size()) + " tokens or -1",
                std::to_string(eos_));
  }
  read_types(data);
  read_vocabulary();
  merges_ = read_merges(data);

  std::vector<bool> is_normalized(tokens_.size(), false);
  for (const std::int32_t id : data.normalized) {
    if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size() || !is_added(static_cast<std::size_t>(id))) {
      throw Error("tokenizer", "normalized", "ids of control and user-defined tokens", std::to_string(id));
    }
    is_normalized[static_cast<std::size_t>(id)] = true;
  }
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (!is_added(id)) continue;
    if (is_normalized[id]) {
      const std::string content = replace_invalid_utf8(tokens_[id]);
      normalized_matcher_.add(nfc_ ? nfc(content) : content, static_cast<std::int32_t>(id));
    } else {
      raw_matcher_.add(tokens_[id], static_cast<std::int32_t>(id));
    }
  }
}

bool Tokenizer::is_added(std::size_t id) const {
  return types_[id] == TokenType::kControl || types_[id] == TokenType::kUserDefined;
}

void Tokenizer::read_types(const TokenizerData& data) {
  types_.assign(tokens_.size(), TokenType::kNormal);
  if (data.token_types.empty()) return;
  if (data.token_types.size() != tokens_.size()) {
    throw Error("tokenizer", "token_types", std::to_string(tokens_.size()) + " of them, one for each token",
                std::to_string(data.token_types.size()));
  }
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    const int type = data.token_types[id];
    if (type < static_cast<int>(TokenType::kNormal) || type > static_cast<int>(TokenType::kByte)) {
      throw Error("tokenizer", "token_types[" + std::to_string(id) + "]", "1 to 6", std::to_string(type));
    }
    types_[id] = static_cast<TokenType>(type);
  }
}

void Tokenizer::read_vocabulary() {
  vocabulary_.reserve(tokens_.size());
  bytes_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    const std::string& token = tokens_[id];
    // Of equal tokens the first is used.
    if (!token.empty()) vocabulary_.try_emplace(token, static_cast<std::int32_t>(id));
    auto bytes = is_added(id) ? std::nullopt : bytes_of_letters(token);
    bytes_.push_back(bytes ? *std::move(bytes) : token);
  }
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = find(byte_letter(static_cast<unsigned char>(byte)));
  }
}

Merges Tokenizer::read_merges(const TokenizerData& data) {
  std::vector<Merges::Merge> merges;
  merges.reserve(data.merges.size());
  std::string joined;
  for (std::size_t i = 0; i < data.merges.size(); ++i) {
    const std::string_view merge = data.merges[i];
    const std::size_t blank = merge.find(' ');
    const auto wrong = [&](const std::string& expected) {
      return Error("tokenizer", "merges[" + std::to_string(i) + "]", expected, quoted(merge));
    };
    if (blank == std::string_view::npos || merge.find(' ', blank + 1) != std::string_view::npos) {
      throw wrong("two tokens with a blank between them");
    }
    joined.assign(merge.substr(0, blank)).append(merge.substr(blank + 1));
    const Merges::Merge ids = {find(merge.substr(0, blank)), find(merge.substr(blank + 1)), find(joined)};
    if (ids.left < 0 || ids.right < 0) throw wrong("two tokens of the vocabulary");
    if (ids.merged < 0) throw wrong("two tokens that make a token of the vocabulary");
    merges.push_back(ids);
  }
  return Merges(merges);
}

std::int32_t Tokenizer::find(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? -1 : found->second;
}

bool Tokenizer::is_control(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < types_.size() &&
         types_[static_cast<std::size_t>(id)] == TokenType::kControl;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  Work work;
  work.parse_special = parse_special;
  const std::string valid = replace_invalid_utf8(text);
  cut(raw_matcher_, valid, work, [&](std::string_view gap) { encode_gap(gap, work); });
  return std::move(work.ids);
}

// Appends the whole tokens that the matcher finds; gap is called with the text between them.
template <typename Gap>
void Tokenizer::cut(const TokenMatcher& matcher, std::string_view text, Work& work, Gap gap) const {
  if (matcher.empty()) return gap(text);
  std::size_t given = 0;
  for (std::size_t at = 0; at < text.size();) {
    const TokenMatcher::Match match = matcher.at(text.substr(at));
    if (match.id < 0) {
      ++at;
      continue;
    }
    // A control token that is read as text still covers its characters: no other token starts within.
    if (work.parse_special || !is_control(match.id)) {
      if (at > given) gap(text.substr(given, at - given));
      work.ids.push_back(match.id);
      given = at + match.length;
    }
    at += match.length;
  }
  if (given < text.size()) gap(text.substr(given));
}

void Tokenizer::encode_gap(std::string_view text, Work& work) const {
  const std::string& normalized = work.normalized.emplace_back(nfc_ ? nfc(text) : std::string(text));
  cut(normalized_matcher_, normalized, work, [&](std::string_view gap) { encode_words(gap, work); });
}

void Tokenizer::encode_words(std::string_view text, Work& work) const {
  pre_tokenizer_.split(text, [&](std::string_view word) {
    if (word.size() > kLongestKeptWord) return encode_word(word, work);
    const auto kept = work.words.find(word);
    if (kept == work.words.end()) {
      const std::size_t first = work.ids.size();
      encode_word(word, work);
      if (work.words.size() < kMostKeptWords) work.words.emplace(word, Work::Kept{first, work.ids.size() - first});
      return;
    }
    const Work::Kept again = kept->second;
    for (std::size_t i = 0; i < again.count; ++i) work.ids.push_back(work.ids[again.first + i]);
  });
}

void Tokenizer::encode_word(std::string_view word, Work& work) const {
  if (word.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error("tokenizer", "text", "words of less than 2 GiB", std::to_string(word.size()) + " bytes without a cut");
  }
  if (ignore_merges_) {
    const std::int32_t whole = find(letters_of_bytes(word));
    if (whole >= 0) return work.ids.push_back(whole);
  }
  work.word.clear();
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    const std::int32_t id = byte_ids_[byte];
    if (id < 0) {
      throw Error("tokenizer", "text", "bytes that the vocabulary has tokens for", "byte " + std::to_string(byte));
    }
    work.word.push_back(id);
  }
  merges_.apply(work.word, work.scratch, work.ids);
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= bytes_.size()) return {};
  return bytes_[static_cast<std::size_t>(id)];
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += token_bytes(id);
  return bytes;
}

std::string StreamDecoder::push(std::int32_t id) {
  held_ += tokenizer_->token_bytes(id);
  // At most the last three bytes are the beginning of a character.
  std::size_t whole = 0;
  while (whole < held_.size()) {
    const Utf8Step step = decode_utf8(std::string_view(held_).substr(whole));
    if (step.truncated) break;
    whole += step.length;
  }
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() { return replace_invalid_utf8(std::exchange(held_, {})); }

}  // namespace thalweg::text
