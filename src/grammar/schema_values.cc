// Values that hold no others: constants, numbers, strings.

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "grammar/formats.h"
#include "grammar/number_ranges.h"
#include "grammar/regex.h"
#include "grammar/schema.h"

namespace thalweg::grammar {
namespace {

bool is_whole(const Json& number) {
  return number.is_number_integer() || std::floor(number.get<double>()) == number.get<double>();
}

bool has_type(const Json& value, std::string_view type) {
  if (type == "integer") return value.is_number() && is_whole(value);
  return value.type_name() == type;
}

bool has_type_of(const Json& value, const Json& schema) {
  if (!schema.contains("type")) return true;
  const Json& type = schema["type"];
  if (!type.is_array()) return has_type(value, type.get<std::string>());
  return std::any_of(type.begin(), type.end(),
                     [&](const Json& one) { return has_type(value, one.get<std::string>()); });
}

// A bound of an integer: the nearest one within. Clamped to what is written at all.
std::int64_t whole_limit(const Json& number, bool lower, bool exclusive) {
  if (number.is_number_integer() && !number.is_number_unsigned()) {
    const auto value = std::max(number.get<std::int64_t>(), -kGreatestInteger - 1);
    return value + (exclusive ? lower ? 1 : -1 : 0);
  }
  const double value = number.get<double>();
  if (std::abs(value) > static_cast<double>(kGreatestInteger)) {
    return value < 0 ? -kGreatestInteger - 1 : kGreatestInteger + 1;
  }
  if (number.is_number_integer()) return number.get<std::int64_t>() + (exclusive ? lower ? 1 : -1 : 0);
  const auto nearest = static_cast<std::int64_t>(lower ? std::ceil(value) : std::floor(value));
  return nearest + (exclusive && is_whole(number) ? lower ? 1 : -1 : 0);
}

// A bound of a number, if the schema has one.
std::optional<NumberLimit> limit(const Json& schema, const char* keyword, bool exclusive, const std::string& path) {
  constexpr double kMost = 1e15;
  if (!schema.contains(keyword)) return std::nullopt;
  const Json& number = schema[keyword];
  if (!is_whole(number) || std::abs(number.get<double>()) > kMost) {
    refuse(joined(path, keyword), "an integer of at most 15 digits as the bound of a number", brief(number));
  }
  return NumberLimit{static_cast<std::int64_t>(number.get<double>()), exclusive};
}

NumberLimit stricter(std::optional<NumberLimit> a, std::optional<NumberLimit> b, bool lower, NumberLimit fallback) {
  if (!a || !b) return a ? *a : b ? *b : fallback;
  if (a->value == b->value) return a->exclusive ? *a : *b;
  return (a->value > b->value) == lower ? *a : *b;
}

StateId whole_number(TextRules& rules, const Json& schema, StateId next) {
  std::int64_t low = -kGreatestInteger;
  std::int64_t high = kGreatestInteger;
  for (const auto& [keyword, exclusive] : {std::pair{"minimum", false}, {"exclusiveMinimum", true}}) {
    if (schema.contains(keyword)) low = std::max(low, whole_limit(schema[keyword], true, exclusive));
  }
  for (const auto& [keyword, exclusive] : {std::pair{"maximum", false}, {"exclusiveMaximum", true}}) {
    if (schema.contains(keyword)) high = std::min(high, whole_limit(schema[keyword], false, exclusive));
  }
  return integer_range(rules, low, high, next);
}

}  // namespace

std::vector<Json> SchemaCompiler::constant_values(const Json& schema, const std::string& path) const {
  for (const auto& [keyword, value] : schema.items()) {
    if (keyword == "type" || keyword == "enum" || keyword == "const" || is_annotation(keyword)) continue;
    if (keyword == "format" || !is_supported(keyword)) continue;
    refuse(joined(path, keyword), "no other keyword but type beside enum and const", "'" + keyword + "'");
  }
  std::vector<Json> values;
  if (schema.contains("enum")) values.assign(schema["enum"].begin(), schema["enum"].end());
  if (schema.contains("const")) {
    if (schema.contains("enum") && std::find(values.begin(), values.end(), schema["const"]) == values.end()) return {};
    values = {schema["const"]};
  }
  std::erase_if(values, [&](const Json& value) { return !has_type_of(value, schema); });
  return values;
}

StateId SchemaCompiler::constants(const Json& schema, const std::string& path, StateId next) {
  std::set<std::string> texts;
  StateId first = kNowhere;
  for (const Json& value : constant_values(schema, path)) {
    if (value.is_structured() && !value.empty()) {
      first = builder_.either(first, constant(value, next));
    } else {
      texts.insert(value.dump());
    }
  }
  return builder_.either(builder_.one_of(std::vector<std::string_view>(texts.begin(), texts.end()), next), first);
}

// With white space where a value that is not constant may have it.
StateId SchemaCompiler::constant(const Json& value, StateId next) {
  if (!value.is_structured() || value.empty()) return builder_.text(value.dump(), next);
  const bool is_object = value.is_object();
  StateId first = rules_.space(builder_.text(is_object ? "}" : "]", next));
  bool is_last = true;
  for (auto one = value.rbegin(); one != value.rend(); ++one) {
    if (!is_last) first = builder_.byte(',', ',', rules_.space(first));
    first = constant(*one, first);
    if (is_object) first = builder_.text(Json(one.key()).dump() + ":", rules_.gap(first));
    is_last = false;
  }
  return builder_.text(is_object ? "{" : "[", rules_.space(first));
}

StateId SchemaCompiler::number(const Json& schema, bool integer, const std::string& path, StateId next) {
  const auto has = [&](const char* keyword) { return schema.contains(keyword); };
  if (!has("minimum") && !has("maximum") && !has("exclusiveMinimum") && !has("exclusiveMaximum")) {
    return integer ? rules_.integer(next) : rules_.number(next);
  }
  if (integer) return whole_number(rules_, schema, next);
  const NumberLimit low = stricter(limit(schema, "minimum", false, path), limit(schema, "exclusiveMinimum", true, path),
                                   true, {-kGreatestInteger});
  const NumberLimit high = stricter(limit(schema, "maximum", false, path),
                                    limit(schema, "exclusiveMaximum", true, path), false, {kGreatestInteger});
  return number_range(rules_, low, high, next);
}

std::vector<Regex> SchemaCompiler::patterns(const Json& schema, const std::string& path) const {
  std::vector<Regex> result;
  if (schema.contains("pattern")) {
    result.emplace_back(schema["pattern"].get_ref<const std::string&>(), joined(path, "pattern"));
  }
  if (schema.contains("format")) {
    const std::string where = joined(path, "format");
    const std::string_view pattern = pattern_of_format(schema["format"].get_ref<const std::string&>(), where);
    if (!pattern.empty()) result.emplace_back(pattern, where);
  }
  if (result.size() > 1) refuse(joined(path, "format"), "either a pattern or a format", "both");
  if (result.empty()) return result;
  const Bounds wanted = bounds_of(schema, "minLength", "maxLength");
  const Bounds has = result.front().lengths();
  if (has.least < wanted.least || has.most > wanted.most) {
    refuse(joined(path, has.least < wanted.least ? "minLength" : "maxLength"),
           "a pattern or format that has no texts of other lengths",
           "one of " + std::to_string(has.least) + " to " +
               (has.most == Bounds::kUnlimited ? "any number" : std::to_string(has.most)) + " characters");
  }
  return result;
}

StateId SchemaCompiler::string(const Json& schema, const std::string& path, StateId next) {
  const std::vector<Regex> patterns = this->patterns(schema, path);
  if (patterns.empty()) return rules_.string(next, bounds_of(schema, "minLength", "maxLength"));
  const StateId quote = builder_.byte('"', '"', next);
  return builder_.byte('"', '"', patterns.front().build(rules_, Spelling::kJson, quote));
}

}  // namespace thalweg::grammar
