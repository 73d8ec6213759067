// `thalweg generate --device metal` on the executor: the CPU's text, and it says where it ran.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "command_line.h"

namespace thalweg::app {
namespace {

class MetalGenerate : public CommandLine {
 protected:
  static Result generate(const std::string& device) {
    const std::string model = THALWEG_MODELS "/story-q4_k.gguf";
    return run({"generate", "-m", model, "--device", device, "--exact", "--temp", "0", "-n", "8", "--json", "-p",
                "Mia has the key. Who has the key?"});
  }
};

TEST_F(MetalGenerate, GreedyTextIsTheCpus) {
  const Result expected = generate("cpu");
  const Result given = generate("metal");
  ASSERT_EQ(expected.code, 0) << expected.err;
  ASSERT_EQ(given.code, 0) << given.err;
  EXPECT_NE(given.err.find("metal: executed on the host"), std::string::npos) << given.err;
  const std::string text = nlohmann::json::parse(expected.out)["text"];
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(nlohmann::json::parse(given.out)["text"], text);
}

}  // namespace
}  // namespace thalweg::app
