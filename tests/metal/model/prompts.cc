// Nightly: the greedy answers to twenty prompts, on the executor as on the CPU; and with bf16 activations, logits that
// are near the CPU's.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "metal/story_model.h"

namespace thalweg::metal {
namespace {

constexpr Device kMetal{DeviceType::kMetal, 0};

const char* const kPrompts[] = {
    "Anna put the red ball in the kitchen. Where is the red ball?",
    "Tom took the lamp to the attic. Where is the lamp?",
    "Mia has the key. Who has the key?",
    "Ben gave the book to Eva. Who has the book?",
    "Sara put the cup on the table. Sara put the cup in the garden. Where is the cup?",
    "Paul is in the hall. Where is Paul?",
    "Lena went to the park. Lena went home. Where is Lena?",
    "Nina likes apples. What does Nina like?",
    "Max is a baker. What is the job of Max?",
    "Emma lives in Rome. Where does Emma live?",
    "What is 3 plus 4?",
    "What is 9 minus 5?",
    "What is 6 times 2?",
    "Leo put the hat in the box. What is in the box?",
    "Ida has the map. Ida gave the map to Jan. Who gave the map to Jan?",
    "The green book is in the cellar. Where is the green book?",
    "Otto has the guitar and the drum. Who has the drum?",
    "Kim put the coin in the drawer. Who put the coin in the drawer?",
    "Rosa took the bag to the school. Tom has the pen. Where is the bag?",
    "Where is the guitar?",
};

// A test for each prompt: they take minutes, and run beside each other.
class MetalPrompt : public testing::TestWithParam<const char*> {};

TEST_P(MetalPrompt, GreedyTextIsTheCpus) {
  Model cpu = load_story(kCpu);
  Model metal = load_story(kMetal);
  const std::string expected = cpu.detokenize(answer_of(cpu, GetParam(), 16));
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(metal.detokenize(answer_of(metal, GetParam(), 16)), expected) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Twenty, MetalPrompt, testing::ValuesIn(kPrompts));

TEST(MetalPrompts, LogitsOfBf16ActivationsAreNearTheCpus) {
  Model cpu = load_story(kCpu);
  Model metal = load_story(kMetal, false);
  Sequence expected = cpu.start();
  Sequence given = metal.start();
  const std::vector<std::int32_t> tokens = cpu.tokenize(kPrompts[0]);
  cpu.prefill(expected, tokens);
  metal.prefill(given, tokens);
  const auto [least, largest] = std::minmax_element(expected.logits().begin(), expected.logits().end());
  double difference = 0.0;
  for (std::size_t i = 0; i < expected.logits().size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(given.logits()[i]) - expected.logits()[i]));
  }
  EXPECT_LT(difference, 0.1 * (*largest - *least));
}

}  // namespace
}  // namespace thalweg::metal
