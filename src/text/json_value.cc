#include "text/json_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "thalweg/error.h"

namespace thalweg::text {
namespace {

constexpr std::size_t kMaxDepth = 256;

// The shortest digits that give the number back: positional from 1e-4 up to 1e16, with an exponent of at least two
// digits elsewhere.
std::string python_float(double value) {
  std::array<char, 64> buffer{};
  const auto write = [&](std::chars_format format) {
    const std::to_chars_result end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format);
    return std::string(buffer.data(), end.ptr);
  };
  std::string scientific = write(std::chars_format::scientific);
  const std::size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  std::string fixed = write(std::chars_format::fixed);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

// Builds a JsonValue from nlohmann's events. Its own DOM would round integers of more than 64 bits.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add({.kind = JsonValue::Kind::kNull, .text = "null"}); }
  bool boolean(bool value) override { return add({.kind = JsonValue::Kind::kBool, .text = value ? "true" : "false"}); }
  bool number_integer(number_integer_t value) override { return add_number(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add_number(std::to_string(value)); }
  bool number_float(number_float_t value, const string_t& digits) override {
    const bool integer = digits.find_first_of(".eE") == std::string::npos;
    return add_number(integer ? digits : python_float(value));
  }
  bool string(string_t& value) override { return add({.kind = JsonValue::Kind::kString, .text = std::move(value)}); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*elements*/) override { return open(JsonValue::Kind::kObject); }
  bool start_array(std::size_t /*elements*/) override { return open(JsonValue::Kind::kArray); }
  bool key(string_t& value) override {
    open_.back().key = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    return false;
  }

  JsonValue take() { return std::move(root_); }

 private:
  struct Level {
    JsonValue value;
    std::string key;                                       // of the member that comes next
    std::unordered_map<std::string, std::size_t> indices;  // of the members, by their keys
  };

  bool add_number(std::string digits) { return add({.kind = JsonValue::Kind::kNumber, .text = std::move(digits)}); }

  bool open(JsonValue::Kind kind) {
    open_.push_back({{.kind = kind}, {}, {}});
    return open_.size() <= kMaxDepth;
  }

  bool close() {
    JsonValue value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = open_.back();
    if (level.value.is(JsonValue::Kind::kObject)) {
      // Of equal keys the last value counts, in the place of the first, as in a Python dict.
      const auto [same, is_new] = level.indices.try_emplace(level.key, level.value.items.size());
      if (!is_new) {
        level.value.items[same->second] = std::move(value);
        return true;
      }
      level.value.keys.push_back(std::move(level.key));
    }
    level.value.items.push_back(std::move(value));
    return true;
  }

  std::vector<Level> open_;
  JsonValue root_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto found = std::find(keys.begin(), keys.end(), key);
  return found == keys.end() ? nullptr : &items[static_cast<std::size_t>(found - keys.begin())];
}

JsonValue parse_json(std::string_view json, const char* operation, const char* argument) {
  Builder builder;
  if (!nlohmann::json::sax_parse(json, &builder)) {
    throw Error(operation, argument, "JSON of at most " + std::to_string(kMaxDepth) + " levels",
                "'" + std::string(json.substr(0, 80)) + "'");
  }
  return builder.take();
}

void append_json_character(std::string& text, char c) {
  static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
  static constexpr std::string_view kLetters = "\"\\nrtfb";
  static constexpr std::string_view kHex = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (const std::size_t found = kEscaped.find(c); found != std::string_view::npos) {
    text += '\\';
    text += kLetters[found];
  } else if (byte < 0x20) {
    text += "\\u00";
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  } else {
    text += c;
  }
}

void append_json_string(std::string& text, std::string_view characters) {
  text += '"';
  for (const char c : characters) append_json_character(text, c);
  text += '"';
}

void append_json(std::string& text, const JsonValue& value) {
  if (value.is(JsonValue::Kind::kString)) return append_json_string(text, value.text);
  const bool object = value.is(JsonValue::Kind::kObject);
  if (!object && !value.is(JsonValue::Kind::kArray)) {
    text += value.text;
    return;
  }
  text += object ? '{' : '[';
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) text += ", ";
    if (object) {
      append_json_string(text, value.keys[i]);
      text += ": ";
    }
    append_json(text, value.items[i]);
  }
  text += object ? '}' : ']';
}

void append_python_str(std::string& text, const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      text += "None";
      return;
    case JsonValue::Kind::kBool:
      text += value.text == "true" ? "True" : "False";
      return;
    case JsonValue::Kind::kString:
      text += value.text;
      return;
    case JsonValue::Kind::kNumber:
    case JsonValue::Kind::kArray:
    case JsonValue::Kind::kObject:
      append_json(text, value);
  }
}

}  // namespace thalweg::text
