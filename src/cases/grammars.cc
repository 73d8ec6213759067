#include "cases/grammars.h"

#include <random>
#include <set>
#include <string_view>

namespace thalweg::cases {
namespace {

std::string random_token(std::mt19937& random) {
  static const std::string_view kSigns[] = {"{",  "}",  "\"", ":",  ",",    "[",    "]",  " ", "\n", "\\", "e", "-",
                                            "0",  "1",  "9",  ".",  "true", "null", "a",  "b", "c",  "x",  "A", "Z",
                                            "  ", "\t", "\"", "\"", "ü",    "你",   "</", ">", "<",  "_",  "u", "00"};
  const auto any = [&](std::size_t size) { return random() % size; };
  std::string text;
  if (any(3) == 0) {
    for (std::size_t i = 1 + any(5); i > 0; --i) text += kSigns[any(std::size(kSigns))];
  } else {
    if (any(2) == 0) text += ' ';
    for (std::size_t i = 1 + any(9); i > 0; --i) text += static_cast<char>('a' + any(26));
    if (any(6) == 0) text += kSigns[any(std::size(kSigns))];
  }
  return text;
}

}  // namespace

std::vector<UsualSchema> usual_schemas() {
  std::string wide = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 100; ++i) {
    wide += (i == 0 ? "\"" : ", \"") + std::string("property_") + std::to_string(i) + R"(": {"type": "string"})";
  }
  return {
      {"any object", R"({"type": "object"})"},
      {"name and age", R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
          "minimum": 0, "maximum": 150}}, "required": ["name", "age"], "additionalProperties": false})"},
      {"list of objects", R"({"type": "object", "properties": {"items": {"type": "array", "items": {"type": "object",
          "properties": {"id": {"type": "integer"}, "title": {"type": "string"}, "done": {"type": "boolean"}},
          "required": ["id", "title", "done"]}}}, "required": ["items"]})"},
      {"bounded strings", R"({"type": "array", "items": {"type": "string", "minLength": 5, "maxLength": 40}})"},
      {"enums", R"({"type": "array", "items": {"enum": ["alpha", "beta", "gamma", "delta", "epsilon", 1, 2, 3]}})"},
      {"recursion", R"({"$defs": {"n": {"type": "object", "properties": {"name": {"type": "string"}, "children":
          {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["name", "children"]}},
          "$ref": "#/$defs/n"})"},
      {"alternatives", R"({"type": "array", "items": {"anyOf": [{"type": "object", "properties": {"kind":
          {"const": "text"}, "text": {"type": "string"}}, "required": ["kind", "text"]}, {"type": "object",
          "properties": {"kind": {"const": "image"}, "url": {"type": "string"}}, "required": ["kind", "url"]}]}})"},
      {"formats", R"({"type": "array", "items": {"type": "object", "properties": {"at": {"type": "string",
          "format": "date-time"}, "id": {"type": "string", "format": "uuid"}, "mail": {"type": "string",
          "format": "email"}}, "required": ["at", "id", "mail"]}})"},
      {"pattern", R"({"type": "array", "items": {"type": "string", "pattern": "^[A-Z][a-z]+( [A-Z][a-z]+){1,3}$"}})"},
      {"100 properties", wide + "}}"},
  };
}

std::vector<std::string> synthetic_vocabulary(std::size_t count, std::uint32_t seed) {
  std::vector<std::string> texts;
  std::mt19937 random(seed);
  std::set<std::string> known;
  const auto add = [&](const std::string& text) {
    if (known.insert(text).second) texts.push_back(text);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* text : {"{\"",
                           "\":",
                           "\": ",
                           "\",",
                           "\", \"",
                           "\"}",
                           "\"]",
                           "}}",
                           "]}",
                           "[[",
                           "{}",
                           "[]",
                           "\"},{\"",
                           "\",\"",
                           "\\\"",
                           "\\u",
                           "\\n",
                           "<tool_call>",
                           "</tool_call>",
                           "</think>",
                           "\xe4\xbd",
                           "\n\n",
                           "                                ",
                           "0123456789",
                           "true",
                           "false",
                           "null"}) {
    add(text);
  }
  while (texts.size() + 2 < count) add(random_token(random));
  texts.emplace_back("<|im_end|>");
  texts.emplace_back("<|other|>");
  return texts;
}

}  // namespace thalweg::cases
