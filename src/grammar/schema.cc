#include "grammar/schema.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace thalweg::grammar {
namespace {

constexpr int kMostDepth = 100;
constexpr std::size_t kMostKey = 1000;   // bytes
constexpr std::size_t kMostRules = 500;  // that begin with each other

Json without(const Json& schema, std::initializer_list<const char*> keywords) {
  Json rest = schema;
  for (const char* keyword : keywords) rest.erase(keyword);
  return rest;
}

}  // namespace

// One level of schemas within schemas.
class SchemaCompiler::Nesting {
 public:
  Nesting(SchemaCompiler& compiler, const std::string& path) : compiler_(compiler) {
    if (++compiler.depth_ > kMostDepth) refuse(path, "schemas in at most 100 levels", "more");
  }
  ~Nesting() { --compiler_.depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  SchemaCompiler& compiler_;
};

SchemaCompiler::SchemaCompiler(TextRules& rules, const Json& document, const std::string& path)
    : rules_(rules), builder_(rules.builder()), document_(document), path_(path), sets_(document, path) {}

StateId SchemaCompiler::document(StateId next) {
  rule_.clear();
  at_beginning_ = true;
  return schema(document_, path_, next);
}

void SchemaCompiler::finish() {
  while (!open_rules_.empty()) {
    rule_ = open_rules_.back();
    open_rules_.pop_back();
    at_beginning_ = true;
    const Json& target = sets_.resolve(rule_, path_);
    builder_.define(rule_starts_[rule_], schema(target, path_ + rule_.substr(1), kRuleEnd));
  }
  check_recursion();
}

StateId SchemaCompiler::schema(const Json& schema, const std::string& path, StateId next) {
  const Nesting nesting(*this, path);
  if (schema.is_boolean()) return schema == true ? rules_.value(next) : kNowhere;
  if (!schema.is_object()) refuse(path, "a schema", brief(schema));
  check_keywords(schema, path);
  if (schema.value("nullable", false)) {
    return builder_.either(builder_.text("null", next), this->schema(without(schema, {"nullable"}), path, next));
  }
  if (schema.contains("$ref")) return reference(schema, path, next);
  if (schema.contains("allOf") || schema.contains("anyOf") || schema.contains("oneOf")) {
    return combination(schema, path, next);
  }
  if (schema.contains("enum") || schema.contains("const")) return constants(schema, path, next);
  return typed(schema, path, next);
}

StateId SchemaCompiler::reference(const Json& schema, const std::string& path, StateId next) {
  if (!has_only_annotations(without(schema, {"$ref"}))) {
    return this->schema(sets_.dereferenced(schema, path), path, next);
  }
  return builder_.call(rule_of(schema["$ref"], path), next);
}

StateId SchemaCompiler::rule_of(const Json& reference, const std::string& path) {
  const auto& name = reference.get_ref<const std::string&>();
  sets_.resolve(reference, path);
  if (at_beginning_) begins_[rule_].insert(name);
  const auto [found, is_new] = rule_starts_.try_emplace(name, kNowhere);
  if (is_new) {
    found->second = builder_.reserve();
    open_rules_.push_back(name);
  }
  return found->second;
}

void SchemaCompiler::check_recursion() const {
  std::set<std::string> left;  // no cycle leads through them
  std::set<std::string> entered;
  const std::function<void(const std::string&)> enter = [&](const std::string& rule) {
    if (left.contains(rule)) return;
    if (!entered.insert(rule).second || entered.size() > kMostRules) {
      refuse(path_ + rule.substr(1) + "/$ref", "a reference that leads to a value", "one that leads to itself");
    }
    if (const auto found = begins_.find(rule); found != begins_.end()) {
      for (const std::string& next : found->second) enter(next);
    }
    entered.erase(rule);
    left.insert(rule);
  };
  for (const auto& [rule, start] : rule_starts_) enter(rule);
}

StateId SchemaCompiler::combination(const Json& schema, const std::string& path, StateId next) {
  if (!schema.contains("allOf")) {
    return alternatives(schema, schema.contains("anyOf") ? "anyOf" : "oneOf", path, next);
  }
  Json all = without(schema, {"allOf"});
  if (has_only_annotations(all)) all = true;
  const std::string inner = joined(path, "allOf");
  const Json& list = schema["allOf"];
  if (list.size() == 1 && all.is_boolean()) return this->schema(list[0], joined(inner, std::size_t{0}), next);
  for (std::size_t i = 0; i < list.size(); ++i) all = sets_.intersection(all, list[i], joined(inner, i));
  return this->schema(all, path, next);
}

StateId SchemaCompiler::alternatives(const Json& schema, std::string_view keyword, const std::string& path,
                                     StateId next) {
  const std::string key(keyword);
  Json rest = without(schema, {key.c_str()});
  const std::string inner = joined(path, key);
  const Json& list = schema[key];
  if (key == "oneOf") check_disjoint(list, inner);
  const bool alone = has_only_annotations(rest);
  StateId first = kNowhere;
  for (std::size_t i = list.size(); i-- > 0;) {
    const std::string here = joined(inner, i);
    const StateId one = this->schema(alone ? list[i] : sets_.intersection(rest, list[i], here), here, next);
    first = builder_.either(one, first);
  }
  return first;
}

void SchemaCompiler::check_disjoint(const Json& list, const std::string& path) {
  constexpr std::size_t kMost = 100;
  if (list.size() > kMost) refuse(path, "at most 100 alternatives", std::to_string(list.size()));
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (std::size_t j = i + 1; j < list.size(); ++j) {
      if (sets_.are_disjoint(list[i], list[j], path)) continue;
      refuse(path, "alternatives that differ in type, by constants, or by constants of required properties; or anyOf",
             "numbers " + std::to_string(i) + " and " + std::to_string(j));
    }
  }
}

StateId SchemaCompiler::typed(const Json& schema, const std::string& path, StateId next) {
  std::set<std::string> types = implied_types(schema);
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    types = type.is_array() ? type.get<std::set<std::string>>() : std::set{type.get<std::string>()};
  }
  if (types.empty()) return rules_.value(next);
  if (types.contains("number")) types.erase("integer");
  StateId first = kNowhere;
  for (const std::string& type : types) first = builder_.either(of_type(type, schema, path, next), first);
  return first;
}

StateId SchemaCompiler::of_type(const std::string& type, const Json& schema, const std::string& path, StateId next) {
  if (type == "null") return builder_.text("null", next);
  if (type == "boolean") return builder_.either(builder_.text("true", next), builder_.text("false", next));
  if (type == "integer" || type == "number") return number(schema, type == "integer", path, next);
  if (type == "string") return string(schema, path, next);
  const bool before = std::exchange(at_beginning_, false);
  const StateId first = type == "array" ? array(schema, path, next) : object(schema, path, next);
  at_beginning_ = before;
  return first;
}

StateId SchemaCompiler::array(const Json& schema, const std::string& path, StateId next) {
  constexpr std::uint32_t kMostItems = 20000;
  const Json none = Json::array();
  const Json& prefix = schema.contains("prefixItems") ? schema["prefixItems"] : none;
  const bool listed = schema.contains("prefixItems") && !schema.contains("items");
  const Json items = schema.value("items", Json(!listed));
  if (items == true && prefix.empty() && !schema.contains("minItems") && !schema.contains("maxItems")) {
    return rules_.array(next);
  }
  Bounds bounds = bounds_of(schema, "minItems", "maxItems");
  const auto prefix_size = static_cast<std::uint32_t>(prefix.size());
  if (items == false) bounds.most = std::min(bounds.most, prefix_size);
  const bool endless = bounds.most == Bounds::kUnlimited;
  const std::uint32_t last = endless ? std::max(bounds.least, prefix_size) : bounds.most;
  if (last > kMostItems) refuse(path, "arrays of at most 20000 items, or without maxItems", std::to_string(last));
  if (bounds.least > bounds.most) return kNowhere;

  // Items that stand more than once are a rule.
  StateId rule = kNowhere;
  if (last > prefix_size && items != false) {
    rule = builder_.reserve();
    builder_.define(rule, this->schema(items, joined(path, "items"), kRuleEnd));
  }
  const auto item = [&](std::uint32_t index, StateId after) {
    if (index < prefix_size) {
      return this->schema(prefix[index], joined(joined(path, "prefixItems"), std::size_t{index}), after);
    }
    return rule != kNowhere ? builder_.call(rule, after) : this->schema(items, joined(path, "items"), after);
  };
  const StateId close = builder_.byte(']', ']', next);
  const auto end_or = [&](bool may_end, StateId more) {
    const StateId comma = builder_.byte(',', ',', rules_.space(more));
    return builder_.either(more == kNowhere ? kNowhere : comma, may_end ? rules_.space(close) : kNowhere);
  };
  StateId after = kNowhere;
  StateId more = kNowhere;  // the item behind `after`
  if (endless) {
    after = builder_.reserve();
    more = item(last, after);
    builder_.define(after, end_or(true, more));
  } else {
    after = end_or(true, kNowhere);
  }
  for (std::uint32_t count = last; count-- > 0;) {
    more = item(count, after);
    after = end_or(count >= bounds.least, more);
  }
  const StateId empty = bounds.least == 0 ? close : kNowhere;
  return builder_.byte('[', '[', rules_.space(builder_.either(more, empty)));
}

SchemaCompiler::Members SchemaCompiler::members(const Json& schema, const std::string& path) const {
  const bool has_properties = schema.contains("properties");
  Members result;
  result.additional = schema.value("additionalProperties", Json(!has_properties));
  const Json none_required = Json::array();
  const Json& names = schema.contains("required") ? schema["required"] : none_required;
  std::set<std::string> required = names.get<std::set<std::string>>();
  const Json none = Json::object();
  for (const auto& [name, property] : (has_properties ? schema["properties"] : none).items()) {
    if (name.size() > kMostKey) refuse(joined(path, "properties"), "names of at most 1000 bytes", "a longer one");
    const bool is_required = required.erase(name) > 0;
    result.listed.push_back({name, &property, is_required, joined(joined(path, "properties"), name)});
  }
  static const Json kAny = true;
  const Json& further = schema.contains("additionalProperties") ? schema["additionalProperties"] : kAny;
  for (const Json& one : names) {
    const auto name = one.get<std::string>();
    if (required.erase(name) == 0) continue;
    if (name.size() > kMostKey) refuse(joined(path, "required"), "names of at most 1000 bytes", "a longer one");
    result.listed.push_back({name, &further, true, joined(path, "additionalProperties")});
  }
  return result;
}

// Keys come in the schema's order; those that are not required may be left out.
StateId SchemaCompiler::object(const Json& schema, const std::string& path, StateId next) {
  const Members members = this->members(schema, path);
  if (members.listed.empty() && members.additional == true) return rules_.object(next);
  AutomatonBuilder& b = builder_;
  const StateId close = b.byte('}', '}', next);
  const StateId close_after = rules_.space(close);
  const auto end_or = [&](bool may_end, StateId key) {
    const StateId comma = key == kNowhere ? kNowhere : b.byte(',', ',', rules_.space(key));
    return b.either(comma, may_end ? close_after : kNowhere);
  };

  StateId key = kNowhere;  // the next of those that are left
  bool may_end = true;
  StateId after = b.reserve();
  if (members.additional != false) {
    std::vector<std::string_view> names;
    for (const Property& property : members.listed) names.push_back(property.name);
    const StateId value = this->schema(members.additional, joined(path, "additionalProperties"), after);
    key = rules_.key_except(names, b.byte(':', ':', rules_.gap(value)));
  }
  b.define(after, end_or(true, key));
  for (std::size_t i = members.listed.size(); i-- > 0;) {
    const Property& property = members.listed[i];
    const StateId value = this->schema(*property.schema, property.path, after);
    const StateId colon = value == kNowhere ? kNowhere : b.byte(':', ':', rules_.gap(value));
    const StateId here = b.text(Json(property.name).dump(), colon);
    key = property.required ? here : b.either(here, key);
    may_end = may_end && !property.required;
    after = end_or(may_end, key);
  }
  return b.byte('{', '{', rules_.space(b.either(key, may_end ? close : kNowhere)));
}

}  // namespace thalweg::grammar
