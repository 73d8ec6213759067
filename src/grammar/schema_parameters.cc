// The arguments of a call as tags: texts stand between them as they are, other values as JSON.

#include <utility>

#include "grammar/schema.h"

namespace thalweg::grammar {
namespace {

constexpr std::string_view kCloseParameter = "</parameter>";
constexpr std::string_view kLastLine = "\n</parameter>\n";

}  // namespace

StateId SchemaCompiler::parameters(StateId next) {
  const Json schema = sets_.dereferenced(document_, path_);
  if (!schema.is_object()) refuse(path_, "an object's schema", brief(schema));
  check_keywords(schema, path_);
  for (const char* keyword : {"allOf", "anyOf", "oneOf", "enum", "const"}) {
    if (schema.contains(keyword)) refuse(joined(path_, keyword), "properties of the function itself", keyword);
  }
  const Json& type = schema.contains("type") ? schema["type"] : Json("object");
  if (type != "object") refuse(joined(path_, "type"), "\"object\"", brief(type));
  rule_.clear();
  at_beginning_ = false;
  StateId first = next;
  const Members members = this->members(schema, path_);
  for (std::size_t i = members.listed.size(); i-- > 0;) {
    const Property& property = members.listed[i];
    const StateId here = parameter(property, first);
    first = property.required ? here : builder_.either(here, first);
  }
  return first;
}

StateId SchemaCompiler::parameter(const Property& property, StateId next) {
  if (property.name.find_first_of("<>\n\r") != std::string::npos) {
    refuse(property.path, "a name without brackets and line feeds", brief(Json(property.name)));
  }
  const StateId close = builder_.text(kLastLine, next);
  const StateId value = is_text(*property.schema, property.path) ? raw_text(*property.schema, property.path, next)
                                                                 : schema(*property.schema, property.path, close);
  return builder_.text("<parameter=" + property.name + ">\n", value);
}

bool SchemaCompiler::is_text(const Json& schema, const std::string& path) {
  return sets_.types(schema, path) == std::set<std::string>{"string"};
}

StateId SchemaCompiler::raw_text(const Json& schema, const std::string& path, StateId next) {
  const Json text = sets_.dereferenced(schema, path);
  check_keywords(text, path);
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    if (text.contains(keyword)) refuse(joined(path, keyword), "one schema of a string", keyword);
  }
  const StateId close = builder_.text(kLastLine, next);
  if (text.contains("enum") || text.contains("const")) {
    const std::vector<Json> values = constant_values(text, path);
    std::set<std::string> texts;
    for (const Json& value : values) texts.insert(value.get<std::string>());
    for (const std::string& one : texts) {
      if (one.find(kCloseParameter) == std::string::npos) continue;
      refuse(path, "texts that do not hold </parameter>", brief(Json(one)));
    }
    return builder_.one_of(std::vector<std::string_view>(texts.begin(), texts.end()), close);
  }
  const std::vector<Regex> patterns = this->patterns(text, path);
  if (!patterns.empty()) return patterns.front().build(rules_, Spelling::kRaw, close);
  const Bounds bounds = bounds_of(text, "minLength", "maxLength");
  if (bounds != Bounds()) return raw_bounded(bounds, next);
  return builder_.text_until(kCloseParameter, builder_.byte('\n', '\n', next));
}

// Without </, so that a text never ends before it is long enough.
StateId SchemaCompiler::raw_bounded(Bounds bounds, StateId next) {
  const StateId anywhere = builder_.reserve();
  const StateId after_bracket = builder_.reserve();
  const StateId close = builder_.enough(builder_.text(kLastLine, kRuleEnd));
  const StateId line_feed = builder_.byte('\n', '\n', anywhere);
  const StateId bracket = builder_.byte('<', '<', after_bracket);
  const auto define = [&](StateId state, CharSet excluded) {
    excluded.emplace_back(U'<', U'<');
    const StateId other = rules_.characters(complement(normalized(std::move(excluded))), Spelling::kRaw, anywhere);
    const StateId one = builder_.either(other, builder_.either(bracket, line_feed));
    builder_.define(state, builder_.either(builder_.character(one), close));
  };
  define(anywhere, {});
  define(after_bracket, {{U'/', U'/'}});
  return builder_.call(anywhere, next, bounds);
}

}  // namespace thalweg::grammar
