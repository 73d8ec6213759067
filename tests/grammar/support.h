#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/masks.h"
#include "thalweg/grammar.h"

namespace thalweg::grammar {

// A vocabulary as byte-level BPE has them: every byte, then longer tokens that text, code and JSON are made of.
struct Tokens {
  std::vector<std::string> texts;
  std::int32_t end = 0;      // <|im_end|>
  std::int32_t control = 0;  // <|other|>
  std::shared_ptr<const Vocabulary> vocabulary;
};

Tokens make_tokens(std::size_t count, std::uint32_t seed);
const Tokens& small_vocabulary();  // of 3000 tokens

// Whether the grammar lets the text end where it ends.
bool accepts(const Grammar& grammar, std::string_view text);

bool is_allowed(std::span<const std::uint32_t> mask, std::int32_t token);
std::vector<std::int32_t> all_allowed(std::span<const std::uint32_t> mask);

// A text of the grammar, token by token at random; after some tokens those are preferred that close things. Every token
// that is not allowed, of a sample, is checked to be impossible.
std::string random_text(const Grammar& grammar, const Tokens& tokens, std::mt19937& random);

}  // namespace thalweg::grammar
