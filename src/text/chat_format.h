#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "thalweg/chat.h"

namespace thalweg::text {

// What a model's chat template does, as far as the published templates of Qwen3-Next, Qwen3.5 and Qwen3.6 differ.
struct ChatFormat {
  enum class Thinking : std::uint8_t { kNever, kAlways, kOnByDefault, kOffByDefault };

  std::string name;
  ToolCallFormat calls = ToolCallFormat::kJson;
  Thinking thinking = Thinking::kNever;
  bool splits_reasoning = false;        // answers after the last question keep their reasoning, earlier ones lose it
  bool preserves_on_request = false;    // ChatOptions::preserve_thinking has an effect
  bool omits_empty_reasoning = false;   // no <think></think> in an answer without reasoning
  bool json_arguments = false;          // of kXml: arguments other than strings are JSON, not Python's str()
  bool merges_system_messages = false;  // two system messages at the beginning become one
};

// From the model's chat template, or, where that is empty, from the architecture of a GGUF file (qwen3next, qwen35,
// qwen35moe) or the model_type of a Hugging Face directory (qwen3_next, qwen3_5, ...). Throws Error for others.
ChatFormat find_chat_format(std::string_view architecture, std::string_view chat_template);

// Whether the answer begins with reasoning. Throws Error for a mode that the format lacks.
bool answer_thinks(const ChatFormat& format, std::optional<bool> think);

}  // namespace thalweg::text
