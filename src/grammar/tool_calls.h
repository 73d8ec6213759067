#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/schema_keywords.h"
#include "grammar/text_rules.h"
#include "thalweg/chat.h"

namespace thalweg::grammar {

// A function that may be called.
struct ToolFunction {
  std::string name;
  Json parameters;   // the schema of its arguments
  std::string path;  // of that schema, for errors
};

// Of OpenAI's list. Throws Error for a list of another form, equal names, and if `only` is not among them.
std::vector<ToolFunction> parse_tools(std::string_view tools, std::string_view only);

// A call of one of the functions, from behind <tool_call> to </tool_call>.
StateId call_body(TextRules& rules, const std::vector<ToolFunction>& functions, ToolCallFormat format, StateId next);

}  // namespace thalweg::grammar
