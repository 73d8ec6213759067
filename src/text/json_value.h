#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thalweg::text {

// A JSON value that prints as Python does: members keep their order, integers of any size their digits.
struct JsonValue {
  enum class Kind : std::uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };

  const JsonValue* find(std::string_view key) const;  // of an object's members; nullptr if there is none
  bool is(Kind wanted) const { return kind == wanted; }

  Kind kind = Kind::kNull;
  std::string text = {};               // a string's characters; a number or a bool as JSON text
  std::vector<std::string> keys = {};  // of an object's members, whose values are `items`
  std::vector<JsonValue> items = {};
};

// Throws Error(operation, argument, ...) for text that is not JSON, for numbers beyond double and more than 256 levels.
JsonValue parse_json(std::string_view json, const char* operation, const char* argument);

// As Python's json.dumps(value, ensure_ascii=False), which the templates' tojson calls.
void append_json(std::string& text, const JsonValue& value);
void append_json_string(std::string& text, std::string_view characters);
void append_json_character(std::string& text, char c);  // of a string: a byte, escaped where it must be

// As Python's str(value): strings as they are, True, False and None capitalized.
void append_python_str(std::string& text, const JsonValue& value);

}  // namespace thalweg::text
