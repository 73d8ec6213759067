#include "documents.h"

#include <algorithm>
#include <cmath>

namespace thalweg::grammar {
namespace {

class Maker {
 public:
  Maker(const Value& document, std::mt19937& random) : document_(document), random_(random) {}

  Value make(const Value& schema, int depth) {
    if (schema.is_boolean() || schema.empty()) return anything(depth);
    if (schema.value("nullable", false) && below(3) == 0) return nullptr;
    if (schema.contains("$ref")) {
      return make(document_.at(Value::json_pointer(schema["$ref"].get<std::string>().substr(1))), depth);
    }
    if (schema.contains("const")) return schema["const"];
    if (schema.contains("enum")) return constant(schema);
    if (schema.contains("allOf")) return {{"a", "text"}, {"b", 2 + below(8)}};  // of the one schema that has it
    if (schema.contains("anyOf") && !schema.contains("properties")) return one_of(schema["anyOf"], depth);
    if (schema.contains("oneOf")) return one_of(schema["oneOf"], depth);
    return of_type(schema, depth);
  }

 private:
  std::size_t below(std::size_t size) { return random_() % size; }

  // Deep down, the last one: it does not recurse.
  Value one_of(const Value& list, int depth) {
    return make(depth > 8 ? list.back() : list[below(list.size())], depth + 1);
  }

  Value constant(const Value& schema) {
    while (true) {
      const Value& value = schema["enum"][below(schema["enum"].size())];
      if (is_valid(value, schema, document_)) return value;
    }
  }

  Value of_type(const Value& schema, int depth) {
    std::string type = schema.contains("properties") || schema.contains("required") ? "object" : "array";
    if (schema.contains("type")) {
      const Value& types = schema["type"];
      type = types.is_array() ? types[below(types.size())] : types;
    }
    if (type == "null") return nullptr;
    if (type == "boolean") return below(2) == 0;
    if (type == "string") return text(schema);
    if (type == "integer") return number(schema, 1);
    if (type == "number") return number(schema, below(2) == 0 ? 4 : 1);
    return type == "array" ? list(schema, depth) : object(schema, depth);
  }

  Value text(const Value& schema) {
    static const std::string kCharacters[] = {"a",    "Z", " ",  "\"", "\\", "/",   "\n",
                                              "\x01", "ü", "你", "😀",  "0",  "\x7f"};
    if (schema.contains("examples")) return schema["examples"][below(schema["examples"].size())];
    const std::size_t least = schema.value("minLength", std::size_t{0});
    const std::size_t most = schema.value("maxLength", least + 8);
    std::string result;
    for (std::size_t i = least + below(most - least + 1); i > 0; --i)
      result += kCharacters[below(std::size(kCharacters))];
    return result;
  }

  // Multiples of 1 / parts.
  Value number(const Value& schema, int parts) {
    const double low = schema.value("minimum", schema.value("exclusiveMinimum", -1000.0));
    const double high = schema.value("maximum", schema.value("exclusiveMaximum", low + 2000.0));
    while (true) {
      const double any = low + (high - low) * static_cast<double>(below(1001)) / 1000;
      const double value = std::round(any * parts) / parts;
      Value result = value == std::floor(value) ? Value(static_cast<std::int64_t>(value)) : Value(value);
      if (is_valid(result, schema, document_)) return result;
    }
  }

  Value list(const Value& schema, int depth) {
    const std::size_t least = schema.value("minItems", std::size_t{0});
    const std::size_t most = schema.value("maxItems", least + (depth > 4 ? 0 : 3));
    const Value prefix = schema.value("prefixItems", Value::array());
    Value result = Value::array();
    for (std::size_t i = 0, size = least + below(most - least + 1); i < size; ++i) {
      result.push_back(make(i < prefix.size() ? prefix[i] : schema.value("items", Value(true)), depth + 1));
    }
    return result;
  }

  Value object(const Value& schema, int depth) {
    const Value required = schema.value("required", Value::array());
    const Value properties = schema.value("properties", Value::object());
    Value result = Value::object();
    bool any = schema.contains("anyOf");  // of the one schema that requires one of all
    for (const auto& [name, property] : properties.items()) {
      const bool is_required = std::find(required.begin(), required.end(), Value(name)) != required.end();
      if (property == false || (!is_required && !any && below(2) == 0)) continue;
      result[name] = make(property, depth + 1);
    }
    const Value additional = schema.value("additionalProperties", Value(false));
    if (!additional.is_object()) return result;
    for (const Value& name : required) {
      if (!properties.contains(name.get<std::string>())) result[name.get<std::string>()] = make(additional, depth + 1);
    }
    for (std::size_t i = below(3); i > 0; --i) result["other " + std::to_string(i)] = make(additional, depth + 1);
    return result;
  }

  Value anything(int depth) {
    switch (below(depth > 5 ? 4 : 6)) {
      case 0:
        return nullptr;
      case 1:
        return static_cast<int>(below(1000)) - 500;
      case 2:
        return text(Value::object());
      case 3:
        return 0.25 * static_cast<double>(below(100));
      case 4:
        return Value::array({anything(depth + 1), anything(depth + 1)});
      default:
        return {{text(Value::object()).get<std::string>(), anything(depth + 1)}};
    }
  }

  const Value& document_;
  std::mt19937& random_;
};

Value replacement(const Value& value, std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      return nullptr;
    case 1:
      return "text";
    case 2:
      return value.is_number() ? Value(value.get<double>() + 1000) : Value(7);
    case 3:
      return value.is_number() ? Value(value.get<double>() - 1000) : Value(-0.5);
    case 4:
      return value.is_string() ? Value(value.get<std::string>() + "xyz") : Value::array();
    case 5:
      return "";
    case 6:
      return Value::object();
    default:
      return true;
  }
}

}  // namespace

Value random_document(const Value& schema, const Value& document, std::mt19937& random, int depth) {
  return Maker(document, random).make(schema, depth);
}

Value damaged(const Value& value, std::mt19937& random) {
  if (!value.is_structured() || value.empty() || random() % 4 == 0) return replacement(value, random);
  Value result = value;
  const auto chosen = std::next(result.begin(), static_cast<std::ptrdiff_t>(random() % result.size()));
  if (random() % 4 == 0) {
    result.erase(chosen);
  } else if (value.is_object() && random() % 4 == 0) {
    result["not listed"] = 1;
  } else {
    *chosen = damaged(*chosen, random);
  }
  return result;
}

std::string damaged(std::string text, std::mt19937& random) {
  constexpr std::string_view kBytes = "{}[]\",:\\ 019-.eEntfau\n\xff";
  const std::size_t position = random() % text.size();
  const char byte = kBytes[random() % kBytes.size()];
  switch (random() % 3) {
    case 0:
      text.erase(position, 1);
      break;
    case 1:
      text[position] = byte;
      break;
    default:
      text.insert(position, 1, byte);
      break;
  }
  return text;
}

}  // namespace thalweg::grammar
