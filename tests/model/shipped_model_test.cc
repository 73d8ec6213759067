// The chat format of the model in the box: the template that it was trained with is in the file, and is read as what it
// is. tests/python/test_chat_template.py renders it.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "io/gguf.h"
#include "text/chat_format.h"

namespace thalweg::model {
namespace {

const std::filesystem::path kRoot = std::filesystem::path(THALWEG_TEST_DIR).parent_path();

TEST(ShippedModel, HasTheTemplateThatItWasTrainedWith) {
  const io::GgufFile file((kRoot / "models" / "story-q4_k.gguf").string());
  std::ifstream stream(kRoot / "tools" / "story_chat_template.jinja", std::ios::binary);
  const std::string source((std::istreambuf_iterator<char>(stream)), {});
  ASSERT_FALSE(source.empty());
  EXPECT_EQ(file.metadata().string("tokenizer.chat_template"), source);

  const text::ChatFormat format = text::find_chat_format("qwen35moe", source);
  EXPECT_EQ(format.name, "Qwen3-Next Instruct");
  EXPECT_EQ(format.calls, ToolCallFormat::kJson);
  EXPECT_EQ(format.thinking, text::ChatFormat::Thinking::kNever);
  EXPECT_FALSE(format.splits_reasoning);
}

}  // namespace
}  // namespace thalweg::model
