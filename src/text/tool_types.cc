#include "text/tool_types.h"

#include <nlohmann/json.hpp>

#include "text/json_value.h"
#include "text/strip.h"
#include "thalweg/error.h"

namespace thalweg::text {
namespace {

using Kind = JsonValue::Kind;

void add_type(ParameterTypes& types, std::string_view name) {
  types.any = false;
  if (name == "string") {
    types.string = true;
  } else if (name == "boolean") {
    types.boolean = true;
  } else if (name == "null") {
    types.null = true;
  } else {
    types.other = true;
  }
}

// A value of an enumeration, as the type that it has.
void add_type_of(ParameterTypes& types, const JsonValue& value) {
  switch (value.kind) {
    case Kind::kString:
      return add_type(types, "string");
    case Kind::kBool:
      return add_type(types, "boolean");
    case Kind::kNull:
      return add_type(types, "null");
    default:
      return add_type(types, "number");
  }
}

void add_types(ParameterTypes& types, const JsonValue& schema) {
  if (const JsonValue* type = schema.find("type"); type != nullptr) {
    if (type->is(Kind::kString)) return add_type(types, type->text);
    for (const JsonValue& one : type->items) add_type(types, one.text);
    return;
  }
  if (const JsonValue* values = schema.find("enum"); values != nullptr) {
    for (const JsonValue& value : values->items) add_type_of(types, value);
    return;
  }
  for (const std::string_view key : {"anyOf", "oneOf"}) {
    const JsonValue* schemas = schema.find(key);
    if (schemas == nullptr) continue;
    for (const JsonValue& one : schemas->items) add_types(types, one);
  }
}

bool is_allowed(const ParameterTypes& types, std::string_view json) {
  if (types.any) return true;
  if (json == "true" || json == "false") return types.boolean;
  if (json == "null") return types.null;
  // A text that is to be a string or something else stays a string unless it has the other's form.
  return json.front() == '"' ? !types.string : types.other || !types.string;
}

std::string_view from_python(std::string_view text, const ParameterTypes& types) {
  if (types.boolean && text == "True") return "true";
  if (types.boolean && text == "False") return "false";
  if (types.null && text == "None") return "null";
  return text;
}

}  // namespace

ToolTypes::ToolTypes(std::string_view tools) : empty_(true) {
  if (tools.empty()) return;
  const JsonValue list = parse_json(tools, "answer_parser", "tools");
  if (!list.is(Kind::kArray)) throw Error("answer_parser", "tools", "a JSON list", "another JSON value");
  empty_ = list.items.empty();
  for (const JsonValue& tool : list.items) {
    const JsonValue* function = tool.find("function");
    if (function == nullptr) function = &tool;
    const JsonValue* name = function->find("name");
    const JsonValue* schema = function->find("parameters");
    const JsonValue* properties = schema == nullptr ? nullptr : schema->find("properties");
    if (name == nullptr || properties == nullptr || !properties->is(Kind::kObject)) continue;
    for (std::size_t i = 0; i < properties->items.size(); ++i) {
      add_types(tools_[name->text][properties->keys[i]], properties->items[i]);
    }
  }
}

ParameterTypes ToolTypes::find(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return {};
  const auto types = found->second.find(parameter);
  return types == found->second.end() ? ParameterTypes{} : types->second;
}

std::string argument_json(std::string_view text, const ParameterTypes& types) {
  const std::string_view json = from_python(strip(text), types);
  if (!types.only_string() && nlohmann::json::accept(json) && is_allowed(types, json)) return std::string(json);
  std::string string;
  append_json_string(string, text);
  return string;
}

}  // namespace thalweg::text
