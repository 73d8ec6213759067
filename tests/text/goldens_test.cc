// Every token as the package tokenizers gives it: tools/make_tokenizer_goldens.py.

#include <gtest/gtest.h>

#include "golden_strings.h"
#include "text/tokenizer_json.h"

namespace thalweg::text {
namespace {

using Json = nlohmann::json;

class Goldens : public testing::TestWithParam<const char*> {
 protected:
  const std::string name_ = GetParam();
  const Tokenizer tokenizer_{read_tokenizer_json(golden_path(name_ + ".tokenizer.json").string())};
  const Json goldens_ = Json::parse(read_text(golden_path(name_ + ".goldens.json")));
  const Strings strings_;

  std::vector<std::string> hashes(bool parse_special) const {
    BlockHashes hashes(goldens_["block"].get<std::size_t>());
    for (std::uint64_t i = 0; i < goldens_["strings"].get<std::uint64_t>(); ++i) {
      hashes.add(tokenizer_.encode(strings_.make(goldens_["seed"].get<std::uint64_t>(), i), parse_special));
    }
    return hashes.finish();
  }
};

TEST_P(Goldens, StringsInFull) {
  ASSERT_GE(goldens_["full"].size(), 50U);
  for (const Json& golden : goldens_["full"]) {
    const auto index = golden["index"].get<std::uint64_t>();
    const std::string text = strings_.make(goldens_["seed"].get<std::uint64_t>(), index);
    EXPECT_EQ(tokenizer_.encode(text, true), golden["ids"].get<std::vector<std::int32_t>>())
        << index << ": " << golden["text"];
    // The package got the text that Python made of the bytes.
    EXPECT_EQ(tokenizer_.encode(golden["text"].get<std::string>(), true), tokenizer_.encode(text, true));
  }
}

TEST_P(Goldens, Strings) {
  ASSERT_GE(goldens_["strings"].get<int>(), 20000);
  EXPECT_EQ(hashes(true), goldens_["special"].get<std::vector<std::string>>());
}

TEST_P(Goldens, StringsWithoutControlTokens) {
  EXPECT_EQ(hashes(false), goldens_["plain"].get<std::vector<std::string>>());
}

TEST_P(Goldens, EveryCodePoint) {
  BlockHashes hashes(goldens_["code_point_block"].get<std::size_t>());
  strings_.each_code_point([&](const std::string& text) { hashes.add(tokenizer_.encode(text, true)); });
  EXPECT_EQ(hashes.finish(), goldens_["code_points"].get<std::vector<std::string>>());
}

INSTANTIATE_TEST_SUITE_P(, Goldens, testing::Values("qwen35", "qwen2", "gpt2", "other"));

}  // namespace
}  // namespace thalweg::text
