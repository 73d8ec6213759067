#include "support.h"

#include <gtest/gtest.h>

#include <set>

namespace thalweg::grammar {
namespace {

std::string random_token(std::mt19937& random) {
  static const std::string_view kSigns[] = {"{",  "}",  "\"", ":",  ",",    "[",    "]",  " ", "\n", "\\", "e", "-",
                                            "0",  "1",  "9",  ".",  "true", "null", "a",  "b", "c",  "x",  "A", "Z",
                                            "  ", "\t", "\"", "\"", "ü",    "你",   "</", ">", "<",  "_",  "u", "00"};
  const auto any = [&](std::size_t size) { return random() % size; };
  std::string text;
  if (any(3) == 0) {
    for (std::size_t i = 1 + any(5); i > 0; --i) text += kSigns[any(std::size(kSigns))];
  } else {
    if (any(2) == 0) text += ' ';
    for (std::size_t i = 1 + any(9); i > 0; --i) text += static_cast<char>('a' + any(26));
    if (any(6) == 0) text += kSigns[any(std::size(kSigns))];
  }
  return text;
}

bool leads_on(const Matcher& start, ConfigId config, std::string_view text) {
  Matcher& matcher = const_cast<Matcher&>(start);
  for (const char c : text) {
    config = matcher.step(config, static_cast<std::uint8_t>(c));
    if (config == kDead) return false;
  }
  return true;
}

// What closes values soonest, where it is allowed; -1: none of it is.
std::int32_t closing(const Tokens& tokens, std::span<const std::uint32_t> mask) {
  if (is_allowed(mask, tokens.end)) return tokens.end;
  const bool in_string = is_allowed(mask, '#');
  for (const char c : in_string ? std::string_view("\"") : std::string_view("}]\"")) {
    if (is_allowed(mask, static_cast<unsigned char>(c))) return static_cast<unsigned char>(c);
  }
  return -1;
}

}  // namespace

Tokens make_tokens(std::size_t count, std::uint32_t seed) {
  Tokens tokens;
  std::mt19937 random(seed);
  std::set<std::string> known;
  const auto add = [&](const std::string& text) {
    if (known.insert(text).second) tokens.texts.push_back(text);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* text : {"{\"",
                           "\":",
                           "\": ",
                           "\",",
                           "\", \"",
                           "\"}",
                           "\"]",
                           "}}",
                           "]}",
                           "[[",
                           "{}",
                           "[]",
                           "\"},{\"",
                           "\",\"",
                           "\\\"",
                           "\\u",
                           "\\n",
                           "<tool_call>",
                           "</tool_call>",
                           "</think>",
                           "\xe4\xbd",
                           "\n\n",
                           "                                ",
                           "0123456789",
                           "true",
                           "false",
                           "null"}) {
    add(text);
  }
  while (tokens.texts.size() + 2 < count) add(random_token(random));
  tokens.end = static_cast<std::int32_t>(tokens.texts.size());
  tokens.texts.emplace_back("<|im_end|>");
  tokens.control = static_cast<std::int32_t>(tokens.texts.size());
  tokens.texts.emplace_back("<|other|>");
  tokens.vocabulary =
      std::make_shared<const Vocabulary>(std::vector<std::string_view>(tokens.texts.begin(), tokens.texts.end()),
                                         std::vector{tokens.end}, std::vector{tokens.control});
  return tokens;
}

const Tokens& small_vocabulary() {
  static const Tokens tokens = make_tokens(3000, 1);
  return tokens;
}

bool accepts(const Grammar& grammar, std::string_view text) {
  Matcher matcher(grammar.automaton());
  ConfigId config = matcher.start();
  for (const char c : text) {
    config = matcher.step(config, static_cast<std::uint8_t>(c));
    if (config == kDead) return false;
  }
  return matcher.is_complete(config);
}

bool is_allowed(std::span<const std::uint32_t> mask, std::int32_t token) {
  return (mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1U) != 0;
}

std::vector<std::int32_t> all_allowed(std::span<const std::uint32_t> mask) {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < mask.size() * 32; ++i) {
    if (is_allowed(mask, static_cast<std::int32_t>(i))) tokens.push_back(static_cast<std::int32_t>(i));
  }
  return tokens;
}

std::string random_text(const Grammar& grammar, const Tokens& tokens, std::mt19937& random) {
  constexpr std::size_t kMostTokens = 5000;
  const std::size_t long_enough = random() % 60;
  Follower follower(std::make_shared<MaskCache>(grammar.shared(), tokens.vocabulary));
  Matcher matcher(grammar.automaton());
  ConfigId config = matcher.start();
  std::string text;
  for (std::size_t count = 0; count < kMostTokens; ++count) {
    const std::span<const std::uint32_t> mask = follower.allowed();
    EXPECT_EQ(is_allowed(mask, tokens.end), matcher.is_complete(config)) << text;
    for (int i = 0; i < 50; ++i) {
      const auto token = static_cast<std::int32_t>(random() % static_cast<std::size_t>(tokens.end));
      const std::string& bytes = tokens.texts[static_cast<std::size_t>(token)];
      EXPECT_EQ(is_allowed(mask, token), leads_on(matcher, config, bytes)) << text << " then " << bytes;
    }
    const std::vector<std::int32_t> allowed = all_allowed(mask);
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing is allowed after " << text;
      return text;
    }
    const std::int32_t closer = count < long_enough && random() % 8 != 0 ? -1 : closing(tokens, mask);
    const std::int32_t token = closer >= 0 ? closer : allowed[random() % allowed.size()];
    if (token == tokens.end) return text;
    follower.accept(token);
    const std::string& bytes = tokens.texts[static_cast<std::size_t>(token)];
    if (token == tokens.control) {
      config = matcher.skip(config);
      continue;
    }
    text += bytes;
    for (const char c : bytes) config = matcher.step(config, static_cast<std::uint8_t>(c));
  }
  ADD_FAILURE() << "no end: " << text.substr(0, 500);
  return text;
}

}  // namespace thalweg::grammar
