#include "grammar/schema_sets.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace thalweg::grammar {
namespace {

constexpr int kMostDepth = 100;
constexpr std::size_t kMostWork = 2'000'000;  // values copied

std::size_t value_count(const Json& value) {
  std::size_t count = 1;
  if (value.is_structured()) {
    for (const Json& child : value) count += value_count(child);
  }
  return count;
}

std::string type_name(const Json& value) {
  if (value.is_number()) return "number";
  return value.type_name();
}

bool is_requiring(const Json& schema, const std::string& name) {
  const auto found = schema.find("required");
  return found != schema.end() && std::find(found->begin(), found->end(), Json(name)) != found->end();
}

Json intersection_of_types(const Json& a, const Json& b) {
  const Json of_a = a.is_array() ? a : Json::array({a});
  const Json of_b = b.is_array() ? b : Json::array({b});
  const auto has = [](const Json& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  Json both = Json::array();
  for (const Json& type : of_a) {
    if (has(of_b, type.get<std::string>()) || (type == "integer" && has(of_b, "number"))) both.push_back(type);
    if (type == "number" && has(of_b, "integer") && !has(of_a, "integer")) both.push_back("integer");
  }
  return both;
}

Json common_values(const Json& a, const Json& b) {
  Json both = Json::array();
  for (const Json& value : a) {
    if (std::find(b.begin(), b.end(), value) != b.end()) both.push_back(value);
  }
  return both;
}

Json joined_names(const Json& a, const Json& b) {
  Json both = a;
  for (const Json& name : b) {
    if (std::find(a.begin(), a.end(), name) == a.end()) both.push_back(name);
  }
  return both;
}

// The document's part that a JSON pointer names; null: there is none.
const Json* part(const Json& document, const std::string& pointer) {
  try {
    const Json::json_pointer where(pointer);
    return document.contains(where) ? &document.at(where) : nullptr;
  } catch (const nlohmann::json::exception&) {
    return nullptr;
  }
}

std::string percent_decoded(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_hex = [&](std::size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] == '%' && is_hex(i + 1) && is_hex(i + 2)) {
      result += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace

std::set<std::string> implied_types(const Json& schema) {
  constexpr std::pair<std::string_view, std::string_view> kAbout[] = {
      {"additionalProperties", "object"},
      {"properties", "object"},
      {"required", "object"},
      {"items", "array"},
      {"maxItems", "array"},
      {"minItems", "array"},
      {"prefixItems", "array"},
      {"format", "string"},
      {"maxLength", "string"},
      {"minLength", "string"},
      {"pattern", "string"},
      {"exclusiveMaximum", "number"},
      {"exclusiveMinimum", "number"},
      {"maximum", "number"},
      {"minimum", "number"},
  };
  std::set<std::string> types;
  for (const auto& [keyword, type] : kAbout) {
    if (schema.contains(keyword)) types.emplace(type);
  }
  return types;
}

const Json& SchemaSets::resolve(const Json& reference, const std::string& path) const {
  const auto& text = reference.get_ref<const std::string&>();
  const Json* target = nullptr;
  if (text == "#") target = &document_;
  if (text.starts_with("#/")) target = part(document_, percent_decoded(std::string_view(text).substr(1)));
  if (target == nullptr || !(target->is_object() || target->is_boolean())) {
    refuse(joined(path, "$ref"), "'#', or '#/' and the path of a schema in this document", brief(reference));
  }
  return *target;
}

void SchemaSets::charge(const Json& schema, const std::string& path) {
  work_ += value_count(schema);
  if (work_ > kMostWork) refuse(path, "schemas whose combinations have at most 2 million values", "more");
}

Json SchemaSets::dereferenced(const Json& schema, const std::string& path) {
  Json result = schema;
  for (int i = 0; result.is_object() && result.contains("$ref"); ++i) {
    if (i == kMostDepth) refuse(joined(path, "$ref"), "a reference that leads to a schema", brief(schema["$ref"]));
    const Json& target = resolve(result["$ref"], path);
    Json rest = result;
    rest.erase("$ref");
    charge(target, path);
    result = has_only_annotations(rest) ? target : intersection(target, rest, path);
  }
  return result;
}

Json SchemaSets::intersection(const Json& a, const Json& b, const std::string& path) {
  if (a.is_boolean()) return a == true ? b : a;
  if (b.is_boolean()) return b == true ? a : b;
  if (depth_ == kMostDepth) refuse(path, "schemas that combine in at most 100 levels", "more");
  ++depth_;
  Json into = dereferenced(a, path);
  const Json other = dereferenced(b, path);
  charge(into, path);
  charge(other, path);
  if (into.is_object() && other.is_object()) {
    check_keywords(into, path);
    check_keywords(other, path);
    intersect_properties(into, other, path);
    for (const auto& [keyword, value] : other.items()) {
      if (!into.is_object()) break;  // nothing is left
      if (keyword != "properties" && !is_annotation(keyword)) intersect_keyword(into, keyword, value, path);
    }
  } else {
    into = intersection(into, other, path);
  }
  --depth_;
  return into;
}

// A property that only one of them names is an additional one of the other.
void SchemaSets::intersect_properties(Json& a, const Json& b, const std::string& path) {
  const Json none = Json::object();
  const Json of_a = a.value("properties", none);
  const Json of_b = b.value("properties", none);
  const std::string inner = joined(path, "properties");
  const auto both = [&](const std::string& name, const Json& schema, const Json& from, const Json& properties) {
    const Json& other = properties.contains(name) ? properties[name] : from.value("additionalProperties", Json(true));
    return intersection(schema, other, joined(inner, name));
  };
  Json merged = Json::object();
  for (const auto& [name, schema] : of_a.items()) merged[name] = both(name, schema, b, of_b);
  for (const auto& [name, schema] : of_b.items()) {
    if (!of_a.contains(name)) merged[name] = both(name, schema, a, of_a);
  }
  if (!merged.empty()) a["properties"] = std::move(merged);
}

void SchemaSets::intersect_keyword(Json& into, std::string_view keyword, const Json& value, const std::string& path) {
  const std::string key(keyword);
  if (!into.contains(key)) {
    into[key] = value;
    return;
  }
  Json& here = into[key];
  if (here == value) return;
  if (key == "type") {
    here = intersection_of_types(here, value);
    if (here.empty()) into = false;
  } else if (key == "required") {
    here = joined_names(here, value);
  } else if (key == "enum") {
    here = common_values(here, value);
    if (here.empty()) into = false;
  } else if (key == "const") {
    into = false;
  } else if (key == "additionalProperties" || key == "items") {
    here = intersection(here, value, joined(path, key));
  } else if (key == "allOf") {
    here.insert(here.end(), value.begin(), value.end());
  } else if (key == "minLength" || key == "minItems" || key == "minimum" || key == "exclusiveMinimum") {
    here = std::max(here, value);
  } else if (key == "maxLength" || key == "maxItems" || key == "maximum" || key == "exclusiveMaximum") {
    here = std::min(here, value);
  } else if (key == "nullable") {
    here = false;
  } else {
    refuse(joined(path, key), "'" + key + "' in one of the schemas that are combined", "two that differ");
  }
}

std::set<std::string> SchemaSets::types(const Json& schema, const std::string& path) {
  const std::set<std::string> all = {"array", "boolean", "null", "number", "object", "string"};
  const Json s = dereferenced(schema, path);
  if (s.is_boolean()) return s == true ? all : std::set<std::string>();
  std::set<std::string> found;
  if (const Json* values = constants(s)) {
    for (const Json& value : *values) found.insert(type_name(value));
  } else if (s.contains("const")) {
    found.insert(type_name(s["const"]));
  } else if (s.contains("type")) {
    const Json& type = s["type"];
    for (const Json& one : type.is_array() ? type : Json::array({type})) {
      found.insert(one == "integer" ? "number" : one.get<std::string>());
    }
  } else if (s.contains("anyOf") || s.contains("oneOf")) {
    if (depth_ == kMostDepth) refuse(path, "alternatives in at most 100 levels", "more");
    ++depth_;
    for (const Json& one : s.contains("anyOf") ? s["anyOf"] : s["oneOf"]) found.merge(types(one, path));
    --depth_;
  } else {
    found = implied_types(s);
    if (found.empty()) found = all;
  }
  if (s.value("nullable", false)) found.insert("null");
  return found;
}

const Json* SchemaSets::constants(const Json& schema) const {
  return schema.is_object() && schema.contains("enum") ? &schema["enum"] : nullptr;
}

bool SchemaSets::values_are_disjoint(const Json& a, const Json& b) const {
  const auto values = [&](const Json& schema) {
    if (const Json* list = constants(schema)) return *list;
    return schema.is_object() && schema.contains("const") ? Json::array({schema["const"]}) : Json::array();
  };
  const Json of_a = values(a);
  const Json of_b = values(b);
  return !of_a.empty() && !of_b.empty() && common_values(of_a, of_b).empty();
}

bool SchemaSets::are_disjoint(const Json& a, const Json& b, const std::string& path) {
  std::set<std::string> shared;
  const std::set<std::string> of_b = types(b, path);
  for (const std::string& type : types(a, path)) {
    if (of_b.contains(type)) shared.insert(type);
  }
  if (shared.empty()) return true;
  const Json in_a = dereferenced(a, path);
  const Json in_b = dereferenced(b, path);
  if (values_are_disjoint(in_a, in_b)) return true;
  if (shared != std::set<std::string>{"object"} || !in_a.contains("properties") || !in_b.contains("properties")) {
    return false;
  }
  for (const auto& [name, schema] : in_a["properties"].items()) {
    if (!is_requiring(in_a, name) || !is_requiring(in_b, name) || !in_b["properties"].contains(name)) continue;
    const Json& other = in_b["properties"][name];
    if (values_are_disjoint(dereferenced(schema, path), dereferenced(other, path))) return true;
  }
  return false;
}

}  // namespace thalweg::grammar
