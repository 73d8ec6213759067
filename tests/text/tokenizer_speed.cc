#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "golden_strings.h"
#include "text/tokenizer_json.h"

namespace thalweg::text {
namespace {

// Megabytes of text per second.
double speed_of(const Tokenizer& tokenizer, const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  const std::size_t count = tokenizer.encode(text, true).size();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_GT(count, 0U);
  return static_cast<double>(text.size()) * 1e-6 / elapsed.count();
}

class TokenizerSpeed : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerSpeed, AMegabytePerSecondOfAnyText) {
  const Tokenizer tokenizer(read_tokenizer_json(golden_path(std::string(GetParam()) + ".tokenizer.json").string()));
  const Strings strings;
  // Kinds of strings: 12 is English, 5 code, 0 random code points, 4 CJK; then all of them.
  for (const int kind : {12, 5, 0, 4, -1}) {
    std::string text;
    for (std::uint64_t i = 0; text.size() < 4'000'000; ++i) {
      text += strings.make(3, kind < 0 ? i : i * 16 + static_cast<std::uint64_t>(kind));
    }
    const double speed = speed_of(tokenizer, text);
    std::cout << GetParam() << ", kind " << kind << ": " << speed << " MB/s\n";
    EXPECT_GT(speed, 1.0);
  }
  for (const std::string_view unit : {"a", " ", "7", "\u0301", "\u0316\u0301", "ab", "\n ", "'s", "字"}) {
    std::string text;
    while (text.size() < 4'000'000) text += unit;
    const double speed = speed_of(tokenizer, text);
    std::cout << GetParam() << ", one unit of " << unit.size() << " bytes again and again: " << speed << " MB/s\n";
    EXPECT_GT(speed, 1.0);
  }
}

INSTANTIATE_TEST_SUITE_P(, TokenizerSpeed, testing::Values("qwen35", "qwen2"));

}  // namespace
}  // namespace thalweg::text
