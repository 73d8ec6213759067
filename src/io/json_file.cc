#include "io/json_file.h"

#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "io/json_parse.h"
#include "io/mapped_file.h"
#include "io/printable.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

constexpr int kMaxDepth = 64;

using nlohmann::json;

const json& as_json(const std::shared_ptr<const void>& value) { return *static_cast<const json*>(value.get()); }

// Null if the key is missing or null.
const json* find(const std::shared_ptr<const void>& value, std::string_view key) {
  const json& object = as_json(value);
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return {};
}

// What is wrong, and where in the text, without the library's name for it: "[json.exception.parse_error.101] ".
std::string reason(const json::exception& exception) {
  const std::string text = exception.what();
  const std::size_t name = text.find("] ");
  return text.starts_with('[') && name != std::string::npos ? text.substr(name + 2) : text;
}

}  // namespace

std::string json_type_name(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    default:
      return value.dump();
  }
}

json parse_json(std::string_view text, const std::string& path, const std::string& subject) {
  std::vector<std::set<std::string>> keys;  // of the objects that enclose the value being parsed
  const auto watch = [&](int depth, json::parse_event_t event, const json& parsed) {
    if (depth > kMaxDepth) {
      throw Error(path, subject, "JSON nested at most " + std::to_string(kMaxDepth) + " deep", "deeper values");
    }
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw Error(path, "key " + printable(key), "each key once in an object", "it twice");
      }
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& exception) {
    throw Error(path, subject, "JSON", printable(reason(exception)));
  }
}

JsonObject::JsonObject(std::shared_ptr<const void> value, std::string path, std::string prefix)
    : value_(std::move(value)), path_(std::move(path)), prefix_(std::move(prefix)) {}

JsonObject JsonObject::parse(std::string_view text, std::string path) {
  auto value = std::make_shared<const json>(parse_json(text, path, "text"));
  if (!value->is_object()) throw Error(path, "text", "a JSON object", json_type_name(*value));
  return {std::move(value), std::move(path), ""};
}

JsonObject JsonObject::read(const std::string& path) {
  const MappedFile file(path);
  return parse({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

void JsonObject::fail(std::string_view key, std::string_view expected, std::string_view given) const {
  throw Error(path_, "key " + printable(prefix_ + std::string(key)), expected, printable(given));
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : as_json(value_).items()) keys.push_back(item.key());
  return keys;
}

bool JsonObject::has(std::string_view key) const { return find(value_, key) != nullptr; }

bool JsonObject::is_object(std::string_view key) const {
  const json* value = find(value_, key);
  return value != nullptr && value->is_object();
}

bool JsonObject::is_array(std::string_view key) const {
  const json* value = find(value_, key);
  return value != nullptr && value->is_array();
}

JsonObject JsonObject::object(std::string_view key) const {
  const json* value = find(value_, key);
  if (value == nullptr || !value->is_object()) {
    fail(key, "an object", value == nullptr ? "no such key" : json_type_name(*value));
  }
  // Shares the whole document's ownership.
  return {std::shared_ptr<const void>(value_, value), path_, prefix_ + std::string(key) + "."};
}

std::int64_t JsonObject::integer(std::string_view key) const {
  const json* value = find(value_, key);
  if (value == nullptr) fail(key, "an integer below 2^63", "no such key");
  if (const auto number = as_integer(*value)) return *number;
  fail(key, "an integer below 2^63", json_type_name(*value));
}

double JsonObject::number(std::string_view key) const {
  const json* value = find(value_, key);
  if (value == nullptr || !value->is_number()) {
    fail(key, "a number", value == nullptr ? "no such key" : json_type_name(*value));
  }
  return value->get<double>();
}

bool JsonObject::boolean(std::string_view key) const {
  const json* value = find(value_, key);
  if (value == nullptr || !value->is_boolean()) {
    fail(key, "true or false", value == nullptr ? "no such key" : json_type_name(*value));
  }
  return value->get<bool>();
}

std::string JsonObject::string(std::string_view key) const {
  const json* value = find(value_, key);
  if (value == nullptr || !value->is_string()) {
    fail(key, "a string", value == nullptr ? "no such key" : json_type_name(*value));
  }
  return value->get<std::string>();
}

std::int64_t JsonObject::integer(std::string_view key, std::int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}

double JsonObject::number(std::string_view key, double fallback) const { return has(key) ? number(key) : fallback; }

bool JsonObject::boolean(std::string_view key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

std::string JsonObject::string(std::string_view key, std::string_view fallback) const {
  return has(key) ? string(key) : std::string(fallback);
}

std::vector<std::int64_t> JsonObject::integers(std::string_view key) const {
  const json* value = find(value_, key);
  if (value == nullptr || !value->is_array()) {
    fail(key, "an array of integers", value == nullptr ? "no such key" : json_type_name(*value));
  }
  std::vector<std::int64_t> numbers;
  for (const json& element : *value) {
    const auto number = as_integer(element);
    if (!number) fail(key, "an array of integers", "the element " + json_type_name(element));
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::string> JsonObject::strings(std::string_view key) const {
  const json* value = find(value_, key);
  if (value == nullptr || !value->is_array()) {
    fail(key, "an array of strings", value == nullptr ? "no such key" : json_type_name(*value));
  }
  std::vector<std::string> texts;
  for (const json& element : *value) {
    if (!element.is_string()) fail(key, "an array of strings", "the element " + json_type_name(element));
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

}  // namespace thalweg::io
