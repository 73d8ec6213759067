#include "text/chat_format.h"

#include <gtest/gtest.h>

#include "expect_error.h"

namespace thalweg::text {
namespace {

using Thinking = ChatFormat::Thinking;

// The marks of the published templates, not the templates: what find_chat_format() looks at.
const std::string kNextMarks =
    "{{- \"# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n<tools>\" }}"
    "{{- tool | tojson }}"
    "{{- \"return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n\" }}"
    "{{- tool_call.arguments | tojson }}{{- '\\n<tool_response>\\n' }}";
const std::string kNextReasoning = "{%- set ns = namespace(last_query_index=messages|length - 1) %}";

std::string qwen35_marks(const std::string& default_of_thinking) {
  return "{%- macro render_content(content) %}{%- endmacro %}"
         "{{- \"# Tools\\n\\nYou have access to the following functions:\\n\\n<tools>\" }}{{- tool | tojson }}"
         "{{- '<function=example_function_name>' }}{%- set ns = namespace(last_query_index=0) %}"
         "{%- set reasoning_content = reasoning_content|trim %}{{- '\\n<tool_response>\\n' }}"
         "{%- if enable_thinking is defined and enable_thinking is " +
         default_of_thinking + " %}{%- endif %}";
}

TEST(ChatFormat, Qwen3Next) {
  const ChatFormat instruct = find_chat_format("qwen3next", kNextMarks + "{{- '<|im_start|>assistant\\n' }}");
  EXPECT_EQ(instruct.name, "Qwen3-Next Instruct");
  EXPECT_EQ(instruct.thinking, Thinking::kNever);
  EXPECT_EQ(instruct.calls, ToolCallFormat::kJson);
  EXPECT_FALSE(instruct.splits_reasoning);
  const std::string opening = "{{- '<|im_start|>assistant\\n<think>\\n' }}";
  const ChatFormat thinking = find_chat_format("qwen3next", kNextMarks + kNextReasoning + opening);
  EXPECT_EQ(thinking.name, "Qwen3-Next Thinking");
  EXPECT_EQ(thinking.thinking, Thinking::kAlways);
  EXPECT_TRUE(thinking.splits_reasoning);
}

TEST(ChatFormat, Qwen35AndItsVariants) {
  const ChatFormat large = find_chat_format("qwen35", qwen35_marks("false"));
  EXPECT_EQ(large.name, "Qwen3.5");
  EXPECT_EQ(large.thinking, Thinking::kOnByDefault);
  EXPECT_EQ(large.calls, ToolCallFormat::kXml);
  EXPECT_FALSE(large.preserves_on_request || large.omits_empty_reasoning || large.json_arguments ||
               large.merges_system_messages);
  EXPECT_EQ(find_chat_format("qwen35", qwen35_marks("true")).thinking, Thinking::kOffByDefault);
  EXPECT_TRUE(find_chat_format("qwen35", qwen35_marks("false") +
                                             "{%- if loop.index0 > ns.last_query_index  and reasoning_content %}")
                  .omits_empty_reasoning);
  EXPECT_TRUE(
      find_chat_format("qwen35", qwen35_marks("false") + "{%- set merged_system = '' %}").merges_system_messages);
  const ChatFormat qwen36 = find_chat_format(
      "qwen35", qwen35_marks("false") +
                    "{%- if (preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > 1) %}"
                    "{%- set args_value = args_value | string if args_value is string else args_value | tojson %}");
  EXPECT_EQ(qwen36.name, "Qwen3.6");
  EXPECT_TRUE(qwen36.preserves_on_request && qwen36.json_arguments);
}

TEST(ChatFormat, LineBreaksMayStandInStrings) {
  std::string marks = qwen35_marks("false");
  for (std::size_t at = 0; (at = marks.find("\\n")) != std::string::npos;) marks.replace(at, 2, "\n");
  EXPECT_EQ(find_chat_format("qwen35", marks).name, "Qwen3.5");
}

TEST(ChatFormat, OtherTemplatesAreErrorsThatNameThem) {
  const auto refuse = [](const std::string& source) {
    try {
      static_cast<void>(find_chat_format("qwen35", source));
      ADD_FAILURE() << source;
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), "tokenizer.chat_template");
      const std::string text = error.what();
      EXPECT_NE(text.find("completions still work"), std::string::npos) << text;
      EXPECT_NE(text.find(source.substr(0, 20)), std::string::npos) << text;
    }
  };
  refuse("{{ messages }}");
  refuse(" ");
  refuse(kNextMarks + "{%- if enable_thinking is defined %}{%- endif %}");
  // A rule that no format here has: a variable or an option of its own.
  refuse(qwen35_marks("false") + "{%- set effort = 'high' %}");
  refuse(qwen35_marks("false") + "{%- if reasoning_effort is defined %}{%- endif %}");
  refuse(qwen35_marks("false") + "{%- if preserve_thinking is undefined or preserve_thinking %}{%- endif %}");
  refuse(qwen35_marks("false").substr(60));
}

TEST(ChatFormat, WithoutATemplateTheArchitectureDecides) {
  for (const char* name : {"qwen35", "qwen35moe", "qwen3_5", "qwen3_5_moe_text"}) {
    EXPECT_EQ(find_chat_format(name, "").name, "Qwen3.5");
  }
  EXPECT_EQ(find_chat_format("qwen3_next", "").name, "Qwen3-Next Instruct");
  expect_error("architecture", [] { static_cast<void>(find_chat_format("llama", "")); });
}

TEST(ChatFormat, DefaultsOfThinking) {
  ChatFormat format;
  const auto expect = [&](Thinking thinking, std::optional<bool> think, bool expected) {
    format.thinking = thinking;
    EXPECT_EQ(answer_thinks(format, think), expected);
  };
  for (const std::optional<bool> think : {std::optional<bool>(), std::optional<bool>(false)}) {
    expect(Thinking::kNever, think, false);
    expect(Thinking::kOffByDefault, think, false);
    expect(Thinking::kOnByDefault, think, !think);
  }
  for (const std::optional<bool> think : {std::optional<bool>(), std::optional<bool>(true)}) {
    expect(Thinking::kAlways, think, true);
    expect(Thinking::kOnByDefault, think, true);
    expect(Thinking::kOffByDefault, think, think.has_value());
  }
}

}  // namespace
}  // namespace thalweg::text
