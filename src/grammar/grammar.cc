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
  return Grammar(finish(builder, rules.space(rules.object(grammar::kRuleEnd)), "json"));
}

Grammar Grammar::json_schema(std::string_view schema) {
  return checked([&] {
    const grammar::Json document = grammar::parse_json(schema, "schema");
    grammar::AutomatonBuilder builder;
    grammar::TextRules rules(builder);
    grammar::SchemaCompiler compiler(rules, document, "#");
    const grammar::StateId start = rules.space(compiler.document(grammar::kRuleEnd));
    compiler.finish();
    return Grammar(finish(builder, start, "schema " + std::string(schema)));
  });
}

Grammar Grammar::tool_calls(std::string_view tools, ToolCallFormat format, ToolChoice choice, std::string_view only,
                            bool parallel) {
  return checked([&] {
    const std::vector<grammar::ToolFunction> functions = grammar::parse_tools(tools, only);
    grammar::AutomatonBuilder builder;
    grammar::TextRules rules(builder);
    const grammar::StateId after = parallel ? builder.reserve() : grammar::kRuleEnd;
    const grammar::StateId call = grammar::call_body(rules, functions, format, after);
    grammar::StateId start = grammar::kNowhere;
    if (choice == ToolChoice::kAuto) {
      start = builder.free_until(kOpenCall, true, call);
      if (parallel) builder.define(after, start);
    } else {
      start = rules.space(builder.text(kOpenCall, call));
      if (parallel) builder.define(after, builder.either(start, grammar::kRuleEnd));
    }
    std::string source = format == ToolCallFormat::kJson ? "json calls " : "xml calls ";
    source += choice == ToolChoice::kAuto ? "auto " : "required ";
    source += parallel ? "many " : "one ";
    return Grammar(finish(builder, start, source.append(grammar::Json(only).dump()).append(tools)));
  });
}

}  // namespace thalweg
