#pragma once

// What an engine's requests give, for tests.

#include <gtest/gtest.h>

#include "thalweg/engine.h"

namespace thalweg {

// All of a request's outputs as one.
inline Output read_all(TokenStream stream) {
  Output all;
  for (Output output; stream.next(output);) {
    all.text += output.text;
    all.tokens.insert(all.tokens.end(), output.tokens.begin(), output.tokens.end());
    all.logprobs.insert(all.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    all.finish = output.finish;
    all.stop = output.stop;
    all.error = output.error;
    all.usage = output.usage;
  }
  return all;
}

// Bit for bit, but for what it cost.
inline void expect_same(const Output& given, const Output& expected, int number) {
  EXPECT_EQ(given.tokens, expected.tokens) << number;
  EXPECT_EQ(given.text, expected.text) << number;
  EXPECT_EQ(given.finish, expected.finish) << number;
  EXPECT_EQ(given.stop, expected.stop) << number;
  EXPECT_EQ(given.error, "") << number;
  EXPECT_EQ(given.usage.generated_tokens, expected.usage.generated_tokens) << number;
  ASSERT_EQ(given.logprobs.size(), expected.logprobs.size()) << number;
  for (std::size_t i = 0; i < expected.logprobs.size(); ++i) {
    EXPECT_EQ(given.logprobs[i].chosen.logprob, expected.logprobs[i].chosen.logprob) << number << ", token " << i;
  }
}

}  // namespace thalweg
