#pragma once

// Answers without a model: text that one would have written, through the parser and a wire format.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/answer.h"
#include "server/grammar_cache.h"
#include "server/serving.h"

namespace thalweg::server {

// Thoughts, content, and two calls.
inline constexpr std::string_view kFullAnswer =
    "First the weather.\n</think>\n\nI will look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
    "\"Paris\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

// Without functions a parser finds no calls.
inline constexpr std::string_view kFunctions =
    R"([{"type": "function", "function": {"name": "weather"}}, {"type": "function", "function": {"name": "time"}},
        {"type": "function", "function": {"name": "f"}}])";

struct Played {
  Choice choice;
  std::string events;
};

// Runs `format` over a text that comes in steps of so many bytes.
inline Played play(AnswerFormat& format, std::string_view text, bool thinking, std::size_t step,
                   FinishReason finish = FinishReason::kEndToken) {
  Played played;
  Choice& choice = played.choice;
  choice.prompt_tokens = 30;
  choice.usage = {30, 20, 12, 0, 0, 0};
  played.events = format.begin({&choice, 1});
  AnswerParser parser(ToolCallFormat::kJson, thinking, kFunctions);
  const auto take = [&](const AnswerParser::Delta& part) {
    AnswerDelta delta;
    add_text(choice, part, delta);
    if (!delta.parts.empty()) played.events += format.delta(0, choice, delta);
  };
  for (std::size_t at = 0; at < text.size(); at += step) take(parser.push(text.substr(at, step)));
  take(parser.finish());
  choice.finish = finish;
  if (finish == FinishReason::kStop) choice.stop = "END";
  played.events += format.finish(0, choice);
  played.events += format.end({&choice, 1});
  return played;
}

// What a format needs of a request.
class Caller {
 public:
  Caller(Server& server, Json body)
      : body_(std::move(body)), call_{server.engine(), grammars_, name_, true, body_, nullptr, nullptr} {}
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  const ApiCall& call() const { return call_; }

 private:
  GrammarCache grammars_;
  const std::string name_ = "story";
  const Json body_;
  const ApiCall call_;
};

}  // namespace thalweg::server
