// Which tokens an answer's content is made of, whatever the parser leaves out or holds back.

#include "server/content_tokens.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thalweg/chat.h"

namespace thalweg::server {
namespace {

constexpr std::string_view kTools = R"([{"type": "function", "function": {"name": "f"}}])";

struct Read {
  std::string content;
  std::vector<std::int32_t> tokens;  // their numbers in the text
};

// An answer of these tokens.
Read read(const std::vector<std::string>& texts, bool thinking, std::string_view tools = kTools) {
  AnswerParser parser(ToolCallFormat::kJson, thinking, tools);
  ContentTokens tokens;
  Read result;
  const auto keep = [&](const std::string& content, const std::vector<TokenLogprobs>& found) {
    result.content += content;
    for (const TokenLogprobs& token : found) result.tokens.push_back(token.chosen.token);
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    tokens.add(texts[i].size(), {{static_cast<std::int32_t>(i), 0}, {}});
    for (const char byte : texts[i]) {
      const AnswerParser::Delta part = parser.push({&byte, 1});
      keep(part.content, tokens.take(byte, part.content));
      if (!part.reasoning.empty() || !part.calls.empty()) tokens.drop();
    }
  }
  const AnswerParser::Delta rest = parser.finish();
  keep(rest.content, tokens.finish(rest.content));
  return result;
}

using Numbers = std::vector<std::int32_t>;

TEST(ContentTokens, LeaveOutThoughtsAndCalls) {
  EXPECT_EQ(read({"All", " of", " it", "."}, false).tokens, (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(read({"I ", "think", "\n", "</think>", "\n\n", "So", " it", " is"}, true).tokens, (Numbers{5, 6, 7}));
  const Read called =
      read({"I look.", "\n", "<tool_call>", "\n{\"name\": \"f\", \"arguments\": {}}", "\n</tool_call>"}, false);
  EXPECT_EQ(called.content, "I look.");
  EXPECT_EQ(called.tokens, Numbers{0});
}

TEST(ContentTokens, AreKeptWhereTextTurnsOutToBeContent) {
  EXPECT_EQ(read({"a", " <", "tool", "_x", "\n\n", "<", "<", "b"}, false).tokens, (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(read({"a", "\n", "<tool"}, false).tokens, (Numbers{0, 1, 2}));
  EXPECT_EQ(read({"<tool_call>", "{\"no", "\n", "call"}, false).tokens, (Numbers{0, 1, 2, 3}));
  // A token that is markup and content in one is content.
  EXPECT_EQ(read({"x</thi", "nk>\n\nA"}, true).tokens, Numbers{1});
}

// Of tokens of one byte: their texts are the content.
TEST(ContentTokens, SpellTheContent) {
  const std::string_view pieces[] = {"<think>",
                                     "</think>",
                                     "<tool_call>",
                                     "</tool_call>",
                                     "{\"name\": \"f\", ",
                                     "<",
                                     "\"arguments\": {\"x\": \"<tool_call>\"}}",
                                     "\n",
                                     " ",
                                     "word",
                                     ">",
                                     "</",
                                     "\n\n",
                                     "{",
                                     "{\"name\": \"f\", \"arguments\": {}}",
                                     "\xE2\x82\xAC"};
  std::mt19937 random(7);
  std::size_t contents = 0;
  for (int run = 0; run < 20'000; ++run) {
    std::string text;
    for (std::size_t i = random() % 12; i > 0; --i) text += pieces[random() % std::size(pieces)];
    std::vector<std::string> texts;
    for (const char byte : text) texts.emplace_back(1, byte);
    const Read result = read(texts, random() % 2 == 0, random() % 4 == 0 ? "" : kTools);
    std::string spelled;
    for (const std::int32_t token : result.tokens) spelled += texts[static_cast<std::size_t>(token)];
    ASSERT_EQ(spelled, result.content) << text;
    contents += result.content.size();
  }
  EXPECT_GT(contents, 100'000U);
}

}  // namespace
}  // namespace thalweg::server
