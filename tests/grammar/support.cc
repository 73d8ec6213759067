#include "support.h"

#include <gtest/gtest.h>

#include "cases/grammars.h"

namespace thalweg::grammar {
namespace {

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
  tokens.texts = cases::synthetic_vocabulary(count, seed);
  tokens.end = static_cast<std::int32_t>(tokens.texts.size()) - 2;
  tokens.control = tokens.end + 1;
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
