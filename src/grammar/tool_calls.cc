#include "grammar/tool_calls.h"

#include <set>
#include <utility>

#include "grammar/schema.h"
#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

constexpr std::size_t kMostTools = 1000;

ToolFunction parse_tool(const Json& tool, const std::string& path) {
  if (!tool.is_object() || tool.value("type", Json()) != "function" || !tool.contains("function")) {
    refuse(path, R"({"type": "function", "function": {...}})", brief(tool));
  }
  const Json& function = tool["function"];
  const std::string inner = joined(path, "function");
  if (!function.is_object()) refuse(inner, "an object", brief(function));
  const Json name = function.value("name", Json());
  if (!name.is_string() || name.get_ref<const std::string&>().empty())
    refuse(joined(inner, "name"), "a name", brief(name));
  const auto& text = name.get_ref<const std::string&>();
  if (text.find_first_of("<>\n\r") != std::string::npos) {
    refuse(joined(inner, "name"), "a name without brackets and line feeds", brief(name));
  }
  const Json none = {{"type", "object"}, {"properties", Json::object()}};
  const bool has_parameters = function.contains("parameters") && !function["parameters"].is_null();
  return {text, has_parameters ? function["parameters"] : none, joined(inner, "parameters")};
}

// Of the arguments in JSON, which are always an object.
void require_object(const ToolFunction& function) {
  const Json type = function.parameters.is_object() ? function.parameters.value("type", Json("object")) : Json();
  if (type != "object") refuse(function.path, R"(a schema of "type": "object")", brief(function.parameters));
}

StateId json_call(TextRules& rules, const ToolFunction& function, StateId next) {
  AutomatonBuilder& b = rules.builder();
  SchemaCompiler compiler(rules, function.parameters, function.path);
  const StateId close = rules.space(b.byte('}', '}', rules.space(b.text("</tool_call>", next))));
  const StateId arguments = b.byte(':', ':', rules.gap(compiler.document(close)));
  const StateId name = b.text(Json(function.name).dump() + ",", rules.space(b.text("\"arguments\"", arguments)));
  compiler.finish();
  return name;
}

StateId xml_call(TextRules& rules, const ToolFunction& function, StateId next) {
  AutomatonBuilder& b = rules.builder();
  SchemaCompiler compiler(rules, function.parameters, function.path);
  const StateId parameters = compiler.parameters(b.text("</function>\n</tool_call>", next));
  compiler.finish();
  return b.text(function.name + ">\n", parameters);
}

}  // namespace

std::vector<ToolFunction> parse_tools(std::string_view tools, std::string_view only) {
  const Json list = parse_json(tools, "tools");
  if (!list.is_array() || list.empty() || list.size() > kMostTools) {
    refuse("tools", "a list of 1 to 1000 tools", brief(list));
  }
  std::vector<ToolFunction> functions;
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    ToolFunction function = parse_tool(list[i], joined("tools", i));
    if (!names.insert(function.name).second) refuse(joined("tools", i), "names that differ", brief(function.name));
    if (only.empty() || function.name == only) functions.push_back(std::move(function));
  }
  if (functions.empty()) refuse("only", "the name of one of the tools", brief(std::string(only)));
  return functions;
}

StateId call_body(TextRules& rules, const std::vector<ToolFunction>& functions, ToolCallFormat format, StateId next) {
  AutomatonBuilder& b = rules.builder();
  StateId first = kNowhere;
  for (const ToolFunction& function : functions) {
    require_object(function);
    const StateId one =
        format == ToolCallFormat::kJson ? json_call(rules, function, next) : xml_call(rules, function, next);
    first = b.either(one, first);
  }
  if (format == ToolCallFormat::kXml) return b.text("\n<function=", first);
  return rules.space(b.byte('{', '{', rules.space(b.text("\"name\":", rules.gap(first)))));
}

}  // namespace thalweg::grammar
