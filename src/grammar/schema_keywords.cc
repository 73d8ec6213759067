#include "grammar/schema_keywords.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

constexpr std::size_t kMostText = 1U << 20;
constexpr int kMostDepth = 200;
constexpr std::size_t kMostMembers = 10000;

constexpr std::string_view kAnnotations[] = {
    "$comment",         "$defs",    "$id",         "$schema",    "$vocabulary", "contentEncoding",
    "contentMediaType", "default",  "definitions", "deprecated", "description", "example",
    "examples",         "readOnly", "strict",      "title",      "writeOnly",
};

constexpr std::string_view kUnsupported[] = {
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "additionalItems",
    "contains",
    "contentSchema",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "maxProperties",
    "minContains",
    "minProperties",
    "multipleOf",
    "not",
    "patternProperties",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
};

enum class Form { kString, kStrings, kSchema, kSchemas, kSchemaMap, kCount, kNumber, kFlag, kList, kType };

struct Keyword {
  std::string_view name;
  Form form;
};

constexpr Keyword kSupported[] = {
    {"$ref", Form::kString},
    {"additionalProperties", Form::kSchema},
    {"allOf", Form::kSchemas},
    {"anyOf", Form::kSchemas},
    {"enum", Form::kList},
    {"exclusiveMaximum", Form::kNumber},
    {"exclusiveMinimum", Form::kNumber},
    {"format", Form::kString},
    {"items", Form::kSchema},
    {"maxItems", Form::kCount},
    {"maxLength", Form::kCount},
    {"maximum", Form::kNumber},
    {"minItems", Form::kCount},
    {"minLength", Form::kCount},
    {"minimum", Form::kNumber},
    {"nullable", Form::kFlag},
    {"oneOf", Form::kSchemas},
    {"pattern", Form::kString},
    {"prefixItems", Form::kSchemas},
    {"properties", Form::kSchemaMap},
    {"required", Form::kStrings},
    {"type", Form::kType},
};

template <typename List>
bool contains(const List& list, std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

bool changes_nothing(std::string_view keyword, const Json& value) {
  if (keyword == "uniqueItems") return value == false;
  if (keyword == "minProperties") return value == 0;
  if (keyword == "unevaluatedProperties" || keyword == "unevaluatedItems") return value == true;
  return false;
}

bool is_schema(const Json& value) { return value.is_object() || value.is_boolean(); }

template <typename Test>
bool all_are(const Json& values, Test test) {
  return std::all_of(values.begin(), values.end(), test);
}

bool is_count(const Json& value) {
  if (!value.is_number()) return false;
  const auto number = value.get<double>();
  return number >= 0 && number <= 1e9 && number == static_cast<double>(static_cast<std::int64_t>(number));
}

bool is_type(const Json& value) {
  constexpr std::string_view kTypes[] = {"array", "boolean", "integer", "null", "number", "object", "string"};
  return value.is_string() && contains(kTypes, value.get_ref<const std::string&>());
}

const char* expected_form(Form form, const Json& value) {
  const auto is_string = [](const Json& one) { return one.is_string(); };
  switch (form) {
    case Form::kString:
      return value.is_string() ? nullptr : "a string";
    case Form::kStrings:
      return value.is_array() && all_are(value, is_string) ? nullptr : "a list of strings";
    case Form::kSchema:
      return is_schema(value) ? nullptr : "a schema";
    case Form::kSchemas:
      return value.is_array() && !value.empty() && all_are(value, is_schema) ? nullptr : "a list of schemas";
    case Form::kSchemaMap:
      return value.is_object() && all_are(value, is_schema) ? nullptr : "an object of schemas";
    case Form::kCount:
      return is_count(value) ? nullptr : "an integer from 0 to a thousand million";
    case Form::kNumber:
      return value.is_number() ? nullptr : "a number";
    case Form::kFlag:
      return value.is_boolean() ? nullptr : "true or false";
    case Form::kList:
      return value.is_array() && !value.empty() ? nullptr : "a list of values";
    case Form::kType:
      break;
  }
  const bool known = is_type(value) || (value.is_array() && !value.empty() && all_are(value, is_type));
  return known ? nullptr : "types of JSON";
}

}  // namespace

void refuse(const std::string& path, std::string_view expected, std::string_view given) {
  throw Error("json_schema", path, expected, given);
}

std::string brief(const Json& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

Json parse_json(std::string_view text, std::string_view argument) {
  const auto wrong = [&](std::string_view expected, std::string_view given) {
    return Error("json_schema", argument, expected, given);
  };
  if (text.size() > kMostText) throw wrong("at most a megabyte", std::to_string(text.size()) + " bytes");
  std::vector<std::size_t> members(1);
  const auto check = [&](int depth, Json::parse_event_t event, const Json&) {
    if (depth > kMostDepth) throw wrong("values in at most 200 levels", "more");
    members.resize(static_cast<std::size_t>(depth) + 1);
    if (event == Json::parse_event_t::key && ++members.back() > kMostMembers) {
      throw wrong("objects of at most 10000 members", "more");
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const nlohmann::json::exception& error) {
    throw wrong("JSON", error.what());
  }
}

bool is_annotation(std::string_view keyword) { return contains(kAnnotations, keyword); }

bool has_only_annotations(const Json& schema) {
  for (const auto& [keyword, value] : schema.items()) {
    if (!is_annotation(keyword)) return false;
  }
  return true;
}

bool is_supported(std::string_view keyword) {
  return std::any_of(std::begin(kSupported), std::end(kSupported),
                     [&](const Keyword& one) { return one.name == keyword; });
}

Bounds bounds_of(const Json& schema, const char* least, const char* most) {
  Bounds bounds;
  if (schema.contains(least)) bounds.least = schema[least].get<std::uint32_t>();
  if (schema.contains(most)) bounds.most = schema[most].get<std::uint32_t>();
  return bounds;
}

void check_keywords(const Json& schema, const std::string& path) {
  for (const auto& [keyword, value] : schema.items()) {
    if (contains(kUnsupported, keyword) && !changes_nothing(keyword, value)) {
      refuse(joined(path, keyword), "a supported keyword (docs/grammar.md)", "'" + keyword + "'");
    }
    const auto is_it = [&key = keyword](const Keyword& one) { return one.name == key; };
    const auto* const found = std::find_if(std::begin(kSupported), std::end(kSupported), is_it);
    if (found == std::end(kSupported)) continue;
    if (const char* expected = expected_form(found->form, value)) {
      refuse(joined(path, keyword), expected, brief(value));
    }
  }
}

std::string joined(const std::string& path, std::string_view key) {
  std::string result = path + '/';
  for (const char c : key) {
    if (c == '~') {
      result += "~0";
    } else if (c == '/') {
      result += "~1";
    } else {
      result += c;
    }
  }
  return result;
}

std::string joined(const std::string& path, std::size_t index) { return path + '/' + std::to_string(index); }

}  // namespace thalweg::grammar
