#pragma once

// Conversations with a model: messages, tools, and the parser that splits an answer into reasoning, content and tool
// calls while it is generated. Model::chat_prompt (model.h) writes a conversation in the format of the model's family.
//
//   const ChatOptions options = {.tools = R"([{"type": "function", "function": {"name": "now"}}])"};
//   const ChatPrompt prompt = model.chat_prompt(std::vector<ChatMessage>{{"user", "What time is it?"}}, options);
//   AnswerParser parser = model.answer_parser(prompt.thinking, options);
//   model.generate(sequence, prompt.tokens, {}, 512, [&](std::string_view text) {
//     std::cout << parser.push(text).content;
//     return true;
//   });
//   std::cout << parser.finish().content;
//
// A parser is used by one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/api.h"

THALWEG_API_BEGIN
namespace thalweg {

struct ToolCall {
  std::string name;
  std::string arguments;  // the text of a JSON object; empty: {}
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or "tool": the result of a call
  std::string content;
  std::string reasoning = {};             // of the assistant, before the content
  std::vector<ToolCall> tool_calls = {};  // of the assistant, after the content
};

struct ChatOptions {
  std::optional<bool> think = {};              // none: as the family does by default
  std::optional<bool> preserve_thinking = {};  // Qwen3.6: earlier answers keep their reasoning; none: they do not
  std::string tools = {};                      // a JSON list as in OpenAI's "tools"; empty: none
};

struct ChatPrompt {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> boundaries;  // numbers of tokens at the ends of messages: engine's Request::boundaries
  bool thinking = false;                 // the answer begins with reasoning
};

// How a family writes calls, within <tool_call> and </tool_call>:
//   kJson: {"name": NAME, "arguments": {...}}
//   kXml:  <function=NAME>, <parameter=KEY>VALUE</parameter> for each argument, </function>
enum class ToolCallFormat : std::uint8_t { kJson, kXml };

// Splits an answer's text while it arrives. The concatenation of all deltas does not depend on how the text was cut.
// The blanks that the family's template writes around reasoning and calls are left out.
//
// A call is begun once its name and the beginning of its arguments are certain; until then, malformed text comes out as
// content. Arguments that become malformed later end there, unclosed, and the rest comes out as content. If the answer
// ends within a call, its arguments end unclosed as well.
class AnswerParser {
 public:
  struct CallDelta {
    std::size_t index = 0;  // of the call within the answer
    std::string name;       // in the call's first delta only
    std::string arguments;  // what follows of the JSON object's text
  };
  struct Delta {
    std::string reasoning;
    std::string content;
    std::vector<CallDelta> calls;
  };

  // thinking: the text begins with reasoning. tools: as ChatOptions::tools. Without tools there are no calls, and what
  // looks like one is content; their schemas type the arguments of kXml: a parameter that may only be a string is a
  // string, and of others what parses is JSON and the rest a string. Throws Error if tools are not a JSON list.
  AnswerParser(ToolCallFormat format, bool thinking, std::string_view tools = {});
  AnswerParser(AnswerParser&& other) noexcept;
  AnswerParser& operator=(AnswerParser&& other) noexcept;
  ~AnswerParser();

  Delta push(std::string_view text);  // what is certain so far
  Delta finish();                     // the rest; nothing may be pushed afterwards
  bool called() const;                // a delta held a call

 private:
  class THALWEG_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thalweg
THALWEG_API_END
