#include "validator.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>

namespace thalweg::grammar {
namespace {

bool has_type(const Value& value, const std::string& type) {
  if (type == "integer") return value.is_number() && value.get<double>() == std::floor(value.get<double>());
  return value.type_name() == type;
}

std::size_t length_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::size_t count_valid(const Value& value, const Value& schemas, const Value& document) {
  return static_cast<std::size_t>(std::count_if(
      schemas.begin(), schemas.end(), [&](const Value& schema) { return is_valid(value, schema, document); }));
}

bool is_valid_format(const std::string& text, const std::string& format) {
  static const std::map<std::string, std::string> kPatterns = {
      {"date", R"(\d{4}-\d\d-\d\d)"},
      {"time", R"(\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d))"},
      {"date-time", R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d))"},
      {"uuid", R"([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"},
      {"ipv4", R"(\d{1,3}(\.\d{1,3}){3})"},
      {"email", R"([^@ "]+@[A-Za-z0-9.-]+)"},
  };
  const auto found = kPatterns.find(format);
  return found == kPatterns.end() || std::regex_match(text, std::regex(found->second));
}

bool is_valid_string(const std::string& text, const Value& schema) {
  if (length_of(text) < schema.value("minLength", std::size_t{0})) return false;
  if (schema.contains("maxLength") && length_of(text) > schema["maxLength"].get<std::size_t>()) return false;
  if (schema.contains("format") && !is_valid_format(text, schema["format"])) return false;
  return !schema.contains("pattern") || std::regex_search(text, std::regex(schema["pattern"].get<std::string>()));
}

bool is_valid_number(double number, const Value& schema) {
  if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
  if (schema.contains("maximum") && number > schema["maximum"].get<double>()) return false;
  if (schema.contains("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>()) return false;
  return !schema.contains("exclusiveMaximum") || number < schema["exclusiveMaximum"].get<double>();
}

bool is_valid_array(const Value& list, const Value& schema, const Value& document) {
  if (list.size() < schema.value("minItems", std::size_t{0})) return false;
  if (schema.contains("maxItems") && list.size() > schema["maxItems"].get<std::size_t>()) return false;
  const Value prefix = schema.value("prefixItems", Value::array());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Value item = i < prefix.size() ? prefix[i] : schema.value("items", Value(true));
    if (!is_valid(list[i], item, document)) return false;
  }
  return true;
}

bool is_valid_object(const Value& object, const Value& schema, const Value& document) {
  for (const Value& name : schema.value("required", Value::array())) {
    if (!object.contains(name.get<std::string>())) return false;
  }
  const Value properties = schema.value("properties", Value::object());
  for (const auto& [name, value] : object.items()) {
    const Value of_it =
        properties.contains(name) ? properties[name] : schema.value("additionalProperties", Value(true));
    if (!is_valid(value, of_it, document)) return false;
  }
  return true;
}

}  // namespace

bool is_valid(const Value& value, const Value& schema, const Value& document) {
  if (schema.is_boolean()) return schema == true;
  if (schema.value("nullable", false) && value.is_null()) return true;
  if (schema.contains("$ref")) {
    const auto pointer = schema["$ref"].get<std::string>().substr(1);
    if (!is_valid(value, document.at(Value::json_pointer(pointer)), document)) return false;
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return false;
  if (schema.contains("allOf") && count_valid(value, schema["allOf"], document) != schema["allOf"].size()) return false;
  if (schema.contains("anyOf") && count_valid(value, schema["anyOf"], document) == 0) return false;
  if (schema.contains("oneOf") && count_valid(value, schema["oneOf"], document) != 1) return false;
  if (schema.contains("type")) {
    const Value& type = schema["type"];
    const Value types = type.is_array() ? type : Value::array({type});
    if (std::none_of(types.begin(), types.end(), [&](const Value& one) { return has_type(value, one); })) return false;
  }
  if (value.is_string()) return is_valid_string(value, schema);
  if (value.is_number()) return is_valid_number(value, schema);
  if (value.is_array()) return is_valid_array(value, schema, document);
  return !value.is_object() || is_valid_object(value, schema, document);
}

}  // namespace thalweg::grammar
