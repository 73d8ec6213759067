#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "golden_strings.h"
#include "text/byte_letters.h"
#include "text/normalize.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace thalweg::text {
namespace {

using Ids = std::vector<std::int32_t>;

Tokenizer load(const std::string& name) {
  return Tokenizer(read_tokenizer_json(golden_path(name + ".tokenizer.json").string()));
}

// Every byte, "he", "ll", "hell", "hello", " hello", a control token and a user-defined one.
TokenizerData small_data() {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) data.tokens.push_back(byte_letter(static_cast<unsigned char>(byte)));
  for (const char* token : {"he", "ll", "hell", "hello", "\u0120hello", "<|end|>", "<note>"})
    data.tokens.emplace_back(token);
  data.merges = {"h e", "l l", "he ll", "hell o", "\u0120 hello"};
  data.token_types.assign(data.tokens.size(), 1);
  data.token_types[261] = 3;
  data.token_types[262] = 4;
  data.pre = "qwen35";
  data.eos = 261;
  return data;
}

TEST(Tokenizer, MergesInOrder) {
  const Tokenizer tokenizer(small_data());
  EXPECT_EQ(tokenizer.encode("hello hello", true), (Ids{259, 260}));
  EXPECT_EQ(tokenizer.encode("hellhe", true), (Ids{258, 256}));
  EXPECT_EQ(tokenizer.encode("", true), Ids{});
  EXPECT_EQ(tokenizer.encode("\n", true), Ids{10});
  EXPECT_EQ(tokenizer.eos(), 261);
  EXPECT_EQ(tokenizer.find("\u0120hello"), 260);
  EXPECT_EQ(tokenizer.find("hallo"), -1);
}

TEST(Tokenizer, ControlTokensCountOnRequest) {
  const Tokenizer tokenizer(small_data());
  EXPECT_EQ(tokenizer.encode("hello<|end|>hello", true), (Ids{259, 261, 259}));
  EXPECT_EQ(tokenizer.encode("<|end|>", false), (Ids{'<', '|', 'e', 'n', 'd', '|', '>'}));
  EXPECT_EQ(tokenizer.encode("<note>he<|end|>", false), (Ids{262, 256, '<', '|', 'e', 'n', 'd', '|', '>'}));
  EXPECT_EQ(tokenizer.encode("<|end|><|en<note>", true), (Ids{261, '<', '|', 'e', 'n', 262}));
  EXPECT_TRUE(tokenizer.is_control(261));
  EXPECT_FALSE(tokenizer.is_control(262));
  EXPECT_FALSE(tokenizer.is_control(-1));
  EXPECT_FALSE(tokenizer.is_control(1000));
}

TEST(Tokenizer, TheLongestTokenThatStartsFirst) {
  TokenizerData data = small_data();
  for (const char* token : {"<|a", "<|ab", "b>", "<|abc"}) {
    data.tokens.emplace_back(token);
    data.token_types.push_back(4);
  }
  const Tokenizer tokenizer(std::move(data));
  EXPECT_EQ(tokenizer.encode("<|ab>", true), (Ids{264, '>'}));
  EXPECT_EQ(tokenizer.encode("<|abcb>", true), (Ids{266, 265}));
  EXPECT_EQ(tokenizer.encode("<|<|a", true), (Ids{'<', '|', 263}));
}

TEST(Tokenizer, InvalidBytesAreReplacedAsPythonDoes) {
  const std::string r = "\uFFFD";
  const std::pair<std::string, std::string> expected[] = {
      {"\x80", r},
      {"a\xFF z", "a" + r + " z"},
      {"\xC0\xAF", r + r},
      {"\xE2\x82", r},
      {"\xE2\x82z", r + "z"},
      {"\xE2\x28\xA1", r + "(" + r},
      {"\xED\xA0\x80", r + r + r},
      {"\xF0\x9F\x98", r},
      {"\xF0\x80\x80\x80", r + r + r + r},
      {"\xF4\x90\x80\x80", r + r + r + r},
      {"\xF0\x9F\xF0\x9F\x98\x80", r + "\U0001F600"},
      {"\xC3\xC3\xA9", r + "\u00e9"},
      {"\xF8\x88\x80\x80\x80", r + r + r + r + r},
  };
  const Tokenizer tokenizer = load("qwen35");
  for (const auto& [bytes, text] : expected) {
    EXPECT_EQ(replace_invalid_utf8(bytes), text);
    EXPECT_EQ(tokenizer.encode(bytes, true), tokenizer.encode(text, true));
  }
  EXPECT_EQ(replace_invalid_utf8(std::string_view("a\0b", 3)), std::string_view("a\0b", 3));
}

TEST(Tokenizer, DecodeGivesBackNormalizedText) {
  const Tokenizer tokenizer = load("qwen35");
  const Strings strings;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const std::string text = nfc(replace_invalid_utf8(strings.make(5, i)));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, i % 2 == 0)), text) << i;
    ASSERT_EQ(nfc(text), text) << i;
  }
}

TEST(Tokenizer, WithoutANormalizerEveryTextComesBack) {
  const Tokenizer tokenizer = load("gpt2");
  const Strings strings;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::string text = replace_invalid_utf8(strings.make(6, i));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, true)), text) << i;
  }
}

TEST(Tokenizer, UnknownIdsHaveNoBytes) {
  const Tokenizer tokenizer(small_data());
  EXPECT_EQ(tokenizer.decode(Ids{-1, 259, 263, 1 << 30}), "hello");
}

TEST(Tokenizer, LongRunsOfAnything) {
  const Tokenizer tokenizer = load("qwen2");
  for (const std::string_view unit :
       {" ", "a", "\n", "\r\n ", "!", "\u0301", "\u0345\u0334", "\u4f60", "\xFF", "\u3000"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    const std::string expected = nfc(replace_invalid_utf8(text));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true)), expected) << unit;
  }
}

TEST(Tokenizer, StreamsWholeCharacters) {
  const Tokenizer tokenizer = load("qwen35");
  const Strings strings;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::string text = nfc(replace_invalid_utf8(strings.make(7, i)));
    StreamDecoder decoder(tokenizer);
    std::string streamed;
    for (const std::int32_t id : tokenizer.encode(text, true)) {
      const std::string piece = decoder.push(id);
      ASSERT_EQ(replace_invalid_utf8(piece), piece);
      streamed += piece;
    }
    ASSERT_EQ(decoder.finish(), "");
    ASSERT_EQ(streamed, text) << i;
  }
}

TEST(Tokenizer, StreamsBrokenBytesAsReplacements) {
  const Tokenizer tokenizer(small_data());
  const Strings strings;
  for (std::uint64_t i = 15; i < 1000 * 16; i += 16) {
    const std::string bytes = strings.make(8, i);
    StreamDecoder decoder(tokenizer);
    std::string streamed;
    for (const char byte : bytes) streamed += decoder.push(static_cast<unsigned char>(byte));
    ASSERT_EQ(streamed + decoder.finish(), replace_invalid_utf8(bytes)) << i;
  }
  StreamDecoder decoder(tokenizer);
  for (const int byte : {0xF0, 0x9F, 0x98}) EXPECT_EQ(decoder.push(byte), "");
  EXPECT_EQ(decoder.push(0x80), "\U0001F600");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(Tokenizer, TheWordIsKnownWholeWhenMergesAreIgnored) {
  TokenizerData data = small_data();
  data.merges.clear();
  EXPECT_EQ(Tokenizer(data).encode("hello", true), (Ids{'h', 'e', 'l', 'l', 'o'}));
  data.ignore_merges = true;
  EXPECT_EQ(Tokenizer(data).encode("hello", true), Ids{259});
}

TEST(Tokenizer, RefusesDataThatDoesNotFit) {
  const auto expect = [](const char* argument, auto change) {
    TokenizerData data = small_data();
    change(data);
    expect_error(argument, [&] { const Tokenizer tokenizer(std::move(data)); });
  };
  expect("merges[5]", [](auto& data) { data.merges.emplace_back("he xyz"); });
  expect("merges[5]", [](auto& data) { data.merges.emplace_back("he h"); });
  expect("merges[0]", [](auto& data) { data.merges[0] = "he"; });
  expect("merges[0]", [](auto& data) { data.merges[0] = "h e l"; });
  expect("merges[0]", [](auto& data) { data.merges[0] = ""; });
  expect("token_types", [](auto& data) { data.token_types.pop_back(); });
  expect("token_types[3]", [](auto& data) { data.token_types[3] = 7; });
  expect("token_types[4]", [](auto& data) { data.token_types[4] = -1; });
  expect("pre", [](auto& data) { data.pre = "llama-bpe"; });
  expect("eos", [](auto& data) { data.eos = 263; });
  expect("normalized", [](auto& data) { data.normalized = {12}; });
  expect("normalized", [](auto& data) { data.normalized = {-1}; });
  for (const char* pattern : {"(",           "[a",     "a\\",     "\\p{Nonsense}", "\\w",  "^a",    "a$",
                              "[[:alpha:]]", "[a&&b]", "(?<n>a)", "(*UTF)a",       "(?R)", "\\1",   "a{1,3}+",
                              "[\\S]",       "\\p{L",  "\\x41",   "\\u12",         "[]a]", "(?i)a", "\\"}) {
    expect("pre_tokenizer", [&](auto& data) {
      data.pre = "regex";
      data.pattern = pattern;
    });
  }
}

TEST(Tokenizer, RefusesTextWithoutTokens) {
  TokenizerData data = small_data();
  data.tokens['x'] = "unused";
  const Tokenizer tokenizer(std::move(data));
  EXPECT_EQ(tokenizer.encode("hello", true), Ids{259});
  expect_error("text", [&] { static_cast<void>(tokenizer.encode("hello x", true)); });
}

TEST(Tokenizer, AHostilePatternEndsWithAnError) {
  TokenizerData data = small_data();
  data.pre = "regex";
  data.pattern = "(a|a|aa)*b";
  const Tokenizer tokenizer(std::move(data));
  expect_error("pre_tokenizer", [&] { static_cast<void>(tokenizer.encode(std::string(500, 'a') + "cb", true)); });
}

TEST(Normalize, MarksAreSortedAndComposed) {
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("a\u0302\u0323"), "\u1ead");
  EXPECT_EQ(nfc("\u212b\u1112\u1161\u11ab"), "\u00c5\ud55c");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("\u0301x"), "\u0301x");
  // U+07FD is a mark since Unicode 11, which tokenizers do not know.
  EXPECT_EQ(nfc("\u07fd\u0334"), "\u07fd\u0334");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(ByteLetters, EveryByteComesBack) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  EXPECT_EQ(bytes_of_letters(letters_of_bytes(bytes)), bytes);
  EXPECT_EQ(letters_of_bytes(" \n!\x7f"), "\u0120\u010a!\u0121");
  EXPECT_EQ(bytes_of_letters("two words"), std::nullopt);
  EXPECT_EQ(bytes_of_letters("\u0144"), std::nullopt);
}

}  // namespace
}  // namespace thalweg::text
