#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "golden_strings.h"

namespace thalweg::text {
namespace {

using Json = nlohmann::json;

Json good_file() { return Json::parse(read_text(golden_path("qwen35.tokenizer.json"))); }

TEST(TokenizerJson, ReadsAFile) {
  const TokenizerData data = read_tokenizer_json(golden_path("qwen35.tokenizer.json").string());
  EXPECT_EQ(data.pre, "qwen35");
  EXPECT_TRUE(data.nfc);
  EXPECT_EQ(data.tokens.size(), 2005U);
  EXPECT_EQ(data.tokens[static_cast<std::size_t>(data.eos)], "<|im_end|>");
  const Tokenizer tokenizer(data);
  EXPECT_TRUE(tokenizer.is_control(tokenizer.find("<|im_start|>")));
  EXPECT_FALSE(tokenizer.is_control(tokenizer.find("<think>")));
}

TEST(TokenizerJson, KnowsThePatterns) {
  const auto pre = [](const char* name) { return read_tokenizer_json(golden_path(name).string()).pre; };
  EXPECT_EQ(pre("qwen2.tokenizer.json"), "qwen2");
  EXPECT_EQ(pre("gpt2.tokenizer.json"), "gpt-2");
  EXPECT_EQ(pre("other.tokenizer.json"), "regex");
}

TEST(TokenizerJson, MergesAreStringsOrPairs) {
  Json file = good_file();
  const TokenizerData pairs = parse_tokenizer_json(file.dump(), "file");
  for (Json& merge : file["model"]["merges"]) {
    if (merge.is_array()) {
      merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    } else {
      const auto text = merge.get<std::string>();
      merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
    }
  }
  EXPECT_EQ(parse_tokenizer_json(file.dump(), "file").merges, pairs.merges);
}

TEST(TokenizerJson, GgufAndJsonGiveTheSameTokens) {
  const TokenizerData json = read_tokenizer_json(golden_path("qwen35.tokenizer.json").string());
  TokenizerData gguf;  // what the metadata of a GGUF file hold
  gguf.tokens = json.tokens;
  gguf.merges = json.merges;
  gguf.token_types = json.token_types;
  gguf.pre = "qwen35";
  const Tokenizer one(json);
  const Tokenizer other(std::move(gguf));
  const Strings strings;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::string text = strings.make(9, i);
    ASSERT_EQ(one.encode(text, true), other.encode(text, true));
  }
}

TEST(TokenizerJson, RefusesWhatItCannotDo) {
  const auto expect = [](const char* argument, const char* pointer, const Json& value) {
    Json file = good_file();
    file[Json::json_pointer(pointer)] = value;
    expect_error(argument, [&] { static_cast<void>(parse_tokenizer_json(file.dump(), "file")); });
  };
  expect("normalizer.type", "/normalizer", {{"type", "NFKC"}});
  expect("normalizer.type", "/normalizer", Json::object());
  expect("normalizer", "/normalizer", "NFC");
  expect("normalizer.normalizers", "/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}});
  expect("pre_tokenizer", "/pre_tokenizer", nullptr);
  expect("pre_tokenizer.type", "/pre_tokenizer", {{"type", "Metaspace"}});
  expect("pre_tokenizer.pretokenizers", "/pre_tokenizer/pretokenizers", Json::array());
  expect("pre_tokenizer.pretokenizers[0].type", "/pre_tokenizer/pretokenizers/0/type", "Digits");
  expect("pre_tokenizer.pretokenizers[0].behavior", "/pre_tokenizer/pretokenizers/0/behavior", "Removed");
  expect("pre_tokenizer.pretokenizers[0].invert", "/pre_tokenizer/pretokenizers/0/invert", true);
  expect("pre_tokenizer.pretokenizers[0].pattern.Regex", "/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}});
  expect("pre_tokenizer.pretokenizers[1].add_prefix_space", "/pre_tokenizer/pretokenizers/1/add_prefix_space", true);
  expect("pre_tokenizer.pretokenizers[1].use_regex", "/pre_tokenizer/pretokenizers/1/use_regex", true);
  expect("post_processor.type", "/post_processor", {{"type", "TemplateProcessing"}});
  expect("decoder.type", "/decoder", {{"type", "WordPiece"}});
  expect("model", "/model", nullptr);
  expect("model.type", "/model/type", "Unigram");
  expect("model.type", "/model/type", 3);
  expect("model.dropout", "/model/dropout", 0.1);
  expect("model.byte_fallback", "/model/byte_fallback", true);
  expect("model.end_of_word_suffix", "/model/end_of_word_suffix", "</w>");
  expect("model.ignore_merges", "/model/ignore_merges", "yes");
  expect("model.vocab", "/model/vocab", Json::array());
  expect("model.vocab['a']", "/model/vocab/a", -1);
  expect("model.vocab['a']", "/model/vocab/a", 1.5);
  expect("model.vocab['a']", "/model/vocab/a", 1e300);
  expect("model.vocab['a']", "/model/vocab/a", 1ULL << 40);
  expect("model.vocab['a']", "/model/vocab/a", 100000000);
  expect("model.vocab['a']", "/model/vocab/a", "7");
  expect("model.vocab['']", "/model/vocab/", 7);
  expect("model.merges", "/model/merges", "a b");
  expect("model.merges[0]", "/model/merges/0", 1);
  expect("model.merges[1]", "/model/merges/1", {"a"});
  expect("added_tokens", "/added_tokens", "none");
  expect("added_tokens[0]", "/added_tokens/0", 1);
  expect("added_tokens[0].id", "/added_tokens/0/id", 1ULL << 63);
  expect("added_tokens[0].id", "/added_tokens/0/id", nullptr);
  expect("added_tokens[0]", "/added_tokens/0/id", 5);
  expect("added_tokens[0].id", "/added_tokens/0/content", "a");
  expect("added_tokens[1].content", "/added_tokens/1/content", 1);
  expect("added_tokens[1].lstrip", "/added_tokens/1/lstrip", true);
  expect("added_tokens[1].special", "/added_tokens/1/special", "no");
}

TEST(TokenizerJson, TwoTokensWithOneId) {
  Json file = good_file();
  file["model"]["vocab"]["a"] = file["model"]["vocab"]["b"];
  EXPECT_THROW(parse_tokenizer_json(file.dump(), "file"), Error);
}

TEST(TokenizerJson, MergesOfUnknownTokens) {
  Json file = good_file();
  file["model"]["merges"][3] = {"qqq", "zzz"};
  expect_error("merges[3]", [&] { const Tokenizer tokenizer(parse_tokenizer_json(file.dump(), "file")); });
}

TEST(TokenizerJson, DamagedFiles) {
  const std::string text = read_text(golden_path("qwen2.tokenizer.json"));
  expect_error("file", [] { static_cast<void>(read_tokenizer_json(golden_path("none.json").string())); });
  // A folder opens like a file, and reads like an empty one.
  expect_error("file", [] { static_cast<void>(read_tokenizer_json(golden_path("").string())); });
  for (const std::string& bad : {std::string(), std::string("[]"), std::string("{"), std::string(100000, '['),
                                 std::string("\xFF\xFE"), text + "x"}) {
    expect_error("file", [&] { static_cast<void>(parse_tokenizer_json(bad, "file")); });
  }
  for (std::size_t length = 0; length + 1 < text.size(); length += 997) {
    expect_error("file", [&] { static_cast<void>(parse_tokenizer_json(text.substr(0, length), "file")); });
  }
}

}  // namespace
}  // namespace thalweg::text
