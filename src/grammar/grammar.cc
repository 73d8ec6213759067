#include "thalweg/grammar.h"

#include <string>
#include <utility>

#include "grammar/schema.h"
#include "grammar/tool_calls.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

constexpr std::string_view kOpenCall = "<tool_call>";

std::shared_ptr<const grammar::Automaton> finish(grammar::AutomatonBuilder& builder, grammar::StateId start,
                                                 std::string source) {
  return std::make_shared<const grammar::Automaton>(builder.finish(start, std::move(source)));
}

grammar::StateId json_of_schema(grammar::TextRules& rules, std::string_view schema) {
  const grammar::Json document = grammar::parse_json(schema, "schema");
  grammar::SchemaCompiler compiler(rules, document, "#");
  const grammar::StateId start = rules.space(compiler.document(grammar::kRuleEnd));
  compiler.finish();
  return start;
}

grammar::StateId any_object(grammar::TextRules& rules) { return rules.space(rules.object(grammar::kRuleEnd)); }

// Nothing but calls.
grammar::StateId calls_alone(grammar::TextRules& rules, const std::vector<grammar::ToolFunction>& functions,
                             ToolCallFormat format, bool parallel) {
  grammar::AutomatonBuilder& builder = rules.builder();
  const grammar::StateId after = parallel ? builder.reserve() : grammar::kRuleEnd;
  const grammar::StateId call = grammar::call_body(rules, functions, format, after);
  const grammar::StateId start = rules.space(builder.text(kOpenCall, call));
  if (parallel) builder.define(after, builder.either(start, grammar::kRuleEnd));
  return start;
}

// Calls, with free text before and between them.
grammar::StateId calls_in_text(grammar::TextRules& rules, const std::vector<grammar::ToolFunction>& functions,
                               ToolCallFormat format, bool parallel) {
  grammar::AutomatonBuilder& builder = rules.builder();
  const grammar::StateId after = parallel ? builder.reserve() : grammar::kRuleEnd;
  const grammar::StateId call = grammar::call_body(rules, functions, format, after);
  const grammar::StateId start = builder.free_until(kOpenCall, true, call);
  if (parallel) builder.define(after, start);
  return start;
}

std::string name_of(ToolCallFormat format, bool parallel) {
  return std::string(format == ToolCallFormat::kJson ? "json calls " : "xml calls ") + (parallel ? "many " : "one ");
}

// What the checks of keywords let pass because it stands where no schema should: a value of a wrong type.
template <typename Function>
auto checked(Function function) {
  try {
    return function();
  } catch (const nlohmann::json::exception& error) {
    throw Error("json_schema", "schema", "JSON Schema", error.what());
  }
}

}  // namespace

Grammar Grammar::any_json() {
  grammar::AutomatonBuilder builder;
  grammar::TextRules rules(builder);
  return Grammar(finish(builder, any_object(rules), "json"));
}

Grammar Grammar::json_schema(std::string_view schema) {
  return checked([&] {
    grammar::AutomatonBuilder builder;
    grammar::TextRules rules(builder);
    const grammar::StateId start = json_of_schema(rules, schema);
    return Grammar(finish(builder, start, "schema " + std::string(schema)));
  });
}

Grammar Grammar::tool_calls(std::string_view tools, ToolCallFormat format, ToolChoice choice, std::string_view only,
                            bool parallel) {
  return checked([&] {
    const std::vector<grammar::ToolFunction> functions = grammar::parse_tools(tools, only);
    grammar::AutomatonBuilder builder;
    grammar::TextRules rules(builder);
    const bool required = choice == ToolChoice::kRequired;
    const grammar::StateId start =
        required ? calls_alone(rules, functions, format, parallel) : calls_in_text(rules, functions, format, parallel);
    std::string source = name_of(format, parallel) + (required ? "required " : "auto ");
    return Grammar(finish(builder, start, source.append(grammar::Json(only).dump()).append(tools)));
  });
}

Grammar Grammar::json_or_tool_calls(std::string_view schema, std::string_view tools, ToolCallFormat format,
                                    bool parallel) {
  return checked([&] {
    const std::vector<grammar::ToolFunction> functions = grammar::parse_tools(tools, {});
    grammar::AutomatonBuilder builder;
    grammar::TextRules rules(builder);
    const grammar::StateId calls = calls_alone(rules, functions, format, parallel);
    const grammar::StateId json = schema.empty() ? any_object(rules) : json_of_schema(rules, schema);
    std::string source = name_of(format, parallel) + "or json " + grammar::Json(schema).dump();
    return Grammar(finish(builder, builder.either(json, calls), source.append(tools)));
  });
}

}  // namespace thalweg
