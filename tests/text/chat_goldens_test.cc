// chat_prompt compared with what transformers writes: tools/make_chat_goldens.py.

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "golden_strings.h"
#include "text/chat.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

using Json = nlohmann::json;

ChatFormat qwen3_next(const std::string& kind) {
  ChatFormat format = find_chat_format("qwen3next", "");
  if (kind == "Thinking") format.thinking = ChatFormat::Thinking::kAlways;
  format.splits_reasoning = kind != "Instruct";
  return format;
}

ChatFormat qwen35() { return find_chat_format("qwen35", ""); }

ChatFormat qwen35_small() {
  ChatFormat format = qwen35();
  format.thinking = ChatFormat::Thinking::kOffByDefault;
  return format;
}

ChatFormat qwen36() {
  ChatFormat format = qwen35();
  format.preserves_on_request = true;
  format.json_arguments = true;
  return format;
}

ChatFormat llama_cpp_qwen35() {
  ChatFormat format = qwen35();
  format.omits_empty_reasoning = true;
  return format;
}

ChatFormat unsloth(bool preserves) {
  ChatFormat format = qwen35();
  format.merges_system_messages = true;
  format.preserves_on_request = preserves;
  return format;
}

ChatFormat format_of(const std::string& name) {
  const std::map<std::string, ChatFormat> formats = {
      {"Qwen3-Next-80B-A3B-Instruct", qwen3_next("Instruct")},
      {"Qwen3-Next-80B-A3B-Instruct-2025-09-09", qwen3_next("2025-09-09")},
      {"Qwen3-Next-80B-A3B-Thinking", qwen3_next("Thinking")},
      {"Qwen3.5-9B", qwen35()},
      {"Qwen3.5-0.8B", qwen35_small()},
      {"Qwen3.6-35B-A3B", qwen36()},
      {"llama.cpp-Qwen3.5-4B", llama_cpp_qwen35()},
      {"unsloth-Qwen3.5", unsloth(false)},
      {"unsloth-Qwen3.6", unsloth(true)},
  };
  return formats.at(name);
}

std::vector<ChatMessage> messages_of(const Json& conversation) {
  std::vector<ChatMessage> messages;
  for (const Json& given : conversation.at("messages")) {
    ChatMessage message = {given.at("role"), given.at("content")};
    message.reasoning = given.value("reasoning", "");
    for (const Json& call : given.value("tool_calls", Json::array())) {
      message.tool_calls.push_back({call.at(0), call.at(1)});
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

std::optional<bool> option_of(const Json& options, const char* name) {
  if (!options.contains(name)) return std::nullopt;
  return options.at(name).get<bool>();
}

std::string fnv1a(std::string_view text) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

// Counts the texts that were compared.
std::size_t compare(const Json& conversations, const Json& run) {
  const ChatFormat format = format_of(run.at("template"));
  std::size_t compared = 0;
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    const Json& conversation = conversations[i];
    const ChatOptions options = {.think = option_of(run.at("options"), "enable_thinking"),
                                 .preserve_thinking = option_of(run.at("options"), "preserve_thinking"),
                                 .tools = conversation.at("tools")};
    const std::vector<ChatMessage> messages = messages_of(conversation);
    if (run.at("hashes")[i].is_null()) {
      EXPECT_THROW(chat_prompt(format, messages, options), Error) << run.at("template") << " " << i;
      continue;
    }
    const std::string text = chat_text(chat_prompt(format, messages, options));
    if (i < run.at("texts").size()) {
      EXPECT_EQ(text, run.at("texts")[i]) << run.at("template") << " " << i;
    }
    EXPECT_EQ(fnv1a(text), run.at("hashes")[i]) << run.at("template") << " " << i << ":\n" << text;
    if (testing::Test::HasFailure()) return compared;
    ++compared;
  }
  return compared;
}

TEST(ChatGoldens, PromptsAreTransformers) {
  const Json goldens = Json::parse(read_text(golden_path("chat.json")));
  std::size_t compared = 0;
  for (const Json& run : goldens.at("runs")) compared += compare(goldens.at("conversations"), run);
  EXPECT_GT(compared, 6000U);
}

}  // namespace
}  // namespace thalweg::text
