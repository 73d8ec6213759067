#pragma once

// Constrained decoding: a grammar decides which text may come next, so that an answer is always JSON of a schema or a
// tool call. docs/grammar.md lists what of JSON Schema is supported.
//
//   const Grammar grammar = Grammar::json_schema(R"({"type": "object", "properties": {"city": {"type": "string"}}})");
//   request.constraint = engine.constraint(grammar);

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "thalweg/api.h"
#include "thalweg/chat.h"

namespace thalweg::grammar {
class Automaton;
}

THALWEG_API_BEGIN
namespace thalweg {

enum class ToolChoice : std::uint8_t {
  kAuto,      // the model may call a function
  kRequired,  // it must
};

// Compiled and immutable: copies share it, and threads may share a copy.
class Grammar {
 public:
  // One JSON object.
  static Grammar any_json();

  // JSON of a schema, given as its text. Throws Error, which names the keyword and its path, for what is not supported.
  static Grammar json_schema(std::string_view schema);

  // Calls of functions: `tools` is a JSON list of {"type": "function", "function": {"name", "description",
  // "parameters"}}. `only`: the one that may be called; empty: any. With kAuto the text is free up to <tool_call>, and
  // after </tool_call> it is free again or, if `parallel`, another call follows. With kRequired nothing but calls is
  // written.
  static Grammar tool_calls(std::string_view tools, ToolCallFormat format, ToolChoice choice,
                            std::string_view only = {}, bool parallel = true);

  // Either JSON of a schema, or calls as tool_calls() has them with kRequired. Without a schema: one JSON object.
  static Grammar json_or_tool_calls(std::string_view schema, std::string_view tools, ToolCallFormat format,
                                    bool parallel = true);

  const grammar::Automaton& automaton() const { return *automaton_; }
  std::shared_ptr<const grammar::Automaton> shared() const { return automaton_; }

 private:
  explicit Grammar(std::shared_ptr<const grammar::Automaton> automaton) : automaton_(std::move(automaton)) {}

  std::shared_ptr<const grammar::Automaton> automaton_;
};

}  // namespace thalweg
THALWEG_API_END
