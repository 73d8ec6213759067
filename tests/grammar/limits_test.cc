// What is not supported is refused by name; what is large compiles or is refused, soon.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "support.h"
#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

using Json = nlohmann::ordered_json;

// The argument that the Error names; empty: there is none.
std::string refused_at(const std::string& schema) {
  try {
    Grammar::json_schema(schema);
  } catch (const Error& error) {
    return error.argument();
  }
  return {};
}

TEST(Refusal, NamesKeywordAndPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {}})", "#/not"},
      {R"({"if": {}, "then": {}})", "#/if"},
      {R"({"patternProperties": {}})", "#/patternProperties"},
      {R"({"propertyNames": {}})", "#/propertyNames"},
      {R"({"minProperties": 1})", "#/minProperties"},
      {R"({"maxProperties": 1})", "#/maxProperties"},
      {R"({"dependentRequired": {}})", "#/dependentRequired"},
      {R"({"uniqueItems": true})", "#/uniqueItems"},
      {R"({"contains": {}})", "#/contains"},
      {R"({"unevaluatedProperties": false})", "#/unevaluatedProperties"},
      {R"({"$dynamicRef": "#a"})", "#/$dynamicRef"},
      {R"({"properties": {"a": {"items": {"multipleOf": 3}}}})", "#/properties/a/items/multipleOf"},
      {R"({"properties": {"a/b~": {"not": {}}}})", "#/properties/a~1b~0/not"},
      {R"({"anyOf": [{"type": "string"}, {"format": "uri"}]})", "#/anyOf/1/format"},
      {R"_({"prefixItems": [true, {"pattern": "a(?=b)"}]})_", "#/prefixItems/1/pattern"},
      {R"({"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"})", "#/$defs/a/not"},
      {R"({"$ref": "other.json"})", "#/$ref"},
      {R"({"$ref": "#/$defs/none"})", "#/$ref"},
      {R"({"$ref": "#"})", "#/$ref"},
      {R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", "#/$ref"},
      {R"({"$ref": "#", "type": "string"})", "#"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "#/oneOf"},
      {R"({"type": "number", "minimum": 0.5})", "#/minimum"},
      {R"({"type": "text"})", "#/type"},
      {R"({"type": 5})", "#/type"},
      {R"({"required": "a"})", "#/required"},
      {R"({"properties": []})", "#/properties"},
      {R"({"minLength": -1})", "#/minLength"},
      {R"({"minLength": 2.5})", "#/minLength"},
      {R"({"items": [{}]})", "#/items"},
      {R"({"enum": []})", "#/enum"},
      {R"({"enum": ["a"], "minLength": 1})", "#/minLength"},
      {R"({"pattern": "a", "maxLength": 5})", "#/maxLength"},
      {R"({"pattern": "^(a|b$", "format": "date"})", "#/pattern"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "#/allOf/1/pattern"},
      {"[1]", "#"},
      {"{", "schema"},
      {R"({"type": "object", "properties": {"a": false}, "required": ["a"]})", "schema"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "schema"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "schema"},
      {R"({"minLength": 3, "maxLength": 2})", "schema"},
  };
  for (const auto& [schema, path] : cases) EXPECT_EQ(refused_at(schema), path) << schema;
}

TEST(Refusal, OfPatterns) {
  for (const char* pattern :
       {"(?=a)", "(?!a)",  "(?<=a)", "(?<n>a)", "\\\\1", "\\\\b", "\\\\p{L}", "a^", "$a",         "(a$)",
        "a**",   "a{2,1}", "a{",     "[",       "[b-a]", "(",     ")",        "*",  "a{1000000}", "\\\\u12"}) {
    EXPECT_EQ(refused_at(std::string(R"({"pattern": ")") + pattern + "\"}"), "#/pattern") << pattern;
  }
}

TEST(Refusal, WhatChangesNothingIsNotRefused) {
  for (const char* schema : {R"({"uniqueItems": false})", R"({"minProperties": 0})", R"({"x-order": 3})",
                             R"({"type": "integer", "format": "int32"})", R"({"type": "integer", "minLength": 3})",
                             R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})"}) {
    EXPECT_EQ(refused_at(schema), "") << schema;
  }
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

double seconds_to_compile_and_walk(const std::string& schema) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    const Grammar grammar = Grammar::json_schema(schema);
    Follower follower(std::make_shared<MaskCache>(grammar.shared(), small_vocabulary().vocabulary));
    std::mt19937 random(1);
    for (int i = 0; i < 20; ++i) {
      const std::vector<std::int32_t> allowed = all_allowed(follower.allowed());
      EXPECT_FALSE(allowed.empty());
      const std::int32_t token = allowed[random() % allowed.size()];
      if (token == small_vocabulary().end) break;
      follower.accept(token);
    }
  } catch (const Error&) {
    // Refused.
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Limits, HostileSchemasTakeSeconds) {
  Json many_values;
  for (int i = 0; i < 50000; ++i) many_values["enum"].push_back("value " + std::to_string(i * 7919));
  Json many_properties = {{"type", "object"}};
  for (int i = 0; i < 2000; ++i) many_properties["properties"]["property " + std::to_string(i)] = {{"type", "string"}};
  Json open = many_properties;
  open["additionalProperties"] = true;
  Json product = {{"$defs", {{"a0", {{"type", "string"}}}}}, {"$ref", "#/$defs/a30"}};
  for (int i = 1; i <= 30; ++i) {
    const Json next = {{"$ref", "#/$defs/a" + std::to_string(i - 1)}};
    product["$defs"]["a" + std::to_string(i)] = {{"allOf", Json::array({next, next})}};
  }
  Json ambiguous = {{"anyOf", Json::array({{{"type", "null"}}})}};
  for (int i = 0; i < 3; ++i) ambiguous["anyOf"].push_back({{"type", "array"}, {"items", {{"$ref", "#"}}}});
  const std::string schemas[] = {
      many_values.dump(),
      many_properties.dump(),
      open.dump(),
      product.dump(),
      ambiguous.dump(),
      repeated(R"({"items":)", 5000) + "{}" + repeated("}", 5000),
      repeated(R"({"items":)", 90) + "{}" + repeated("}", 90),
      repeated(R"({"not":[)", 100000),
      R"({"pattern": "(a*)*b"})",
      R"({"pattern": "^((a*)*)*b$"})",
      R"({"pattern": "^(a|aa|a?){100}$"})",
      R"_({"pattern": "((((a{100}){100}){100}){100})"})_",
      R"_({"pattern": "(((((){1000}){1000}){1000}){1000})"})_",
      R"({"pattern": "(.?){10000}"})",
      R"({"pattern": "(x?y?z?.?){500}"})",
      "{\"pattern\": \"" + repeated("(", 4000) + "\"}",
      R"({"type": "string", "maxLength": 1000000000})",
      R"({"type": "string", "minLength": 100000, "maxLength": 100000})",
      R"({"type": "array", "maxItems": 1000000000})",
      R"({"type": "array", "items": {"type": "array", "maxItems": 10000}, "maxItems": 10000})",
      R"({"const": ")" + repeated("a", 900000) + "\"}",
      R"({"properties": {")" + repeated("a", 900000) + "\": true}}",
  };
  for (const std::string& schema : schemas) {
    EXPECT_LT(seconds_to_compile_and_walk(schema), 10) << schema.substr(0, 100);
  }
}

TEST(Limits, ValuesNestUpToTheDepthOfTheStackAndEnd) {
  const Grammar grammar = Grammar::json_schema("{}");
  EXPECT_TRUE(accepts(grammar, repeated("[", 60) + repeated("]", 60)));
  EXPECT_FALSE(accepts(grammar, repeated("[", 100) + repeated("]", 100)));
  // However deep it is, some token always leads on.
  Follower follower(std::make_shared<MaskCache>(grammar.shared(), small_vocabulary().vocabulary));
  const auto next = [&](const std::vector<char>& choices) {
    const std::span<const std::uint32_t> mask = follower.allowed();
    for (const char c : choices) {
      if (!is_allowed(mask, c)) continue;
      follower.accept(c);
      return c;
    }
    return '\0';
  };
  int depth = 0;
  while (next({'['}) != '\0') ++depth;
  EXPECT_GT(depth, 50);
  EXPECT_NE(next({'1', ']'}), '\0');
  while (next({']'}) != '\0') --depth;
  EXPECT_EQ(depth, 0);
  EXPECT_TRUE(follower.is_complete());
}

TEST(Limits, ACacheThatIsFullBeginsAnew) {
  const Grammar grammar = Grammar::json_schema("{}");
  const auto cache = std::make_shared<MaskCache>(grammar.shared(), small_vocabulary().vocabulary);
  Follower patient(cache);
  for (const char c : std::string_view("[1, [\"a")) patient.accept(static_cast<unsigned char>(c));
  const std::vector<std::int32_t> before = all_allowed(patient.allowed());
  std::mt19937 random(2);
  const std::uint64_t first = cache->generation();
  for (int i = 0; i < 20000 && cache->generation() == first; ++i) {
    Follower other(cache);
    for (int j = 0; j < 100; ++j) {
      const char c = "[{"[random() % 2];
      if (!is_allowed(other.allowed(), c)) break;
      other.accept(c);
      if (c == '{') {
        for (const char of_key : std::string_view("\"\":")) other.accept(of_key);
      }
    }
  }
  EXPECT_GT(cache->generation(), first);
  EXPECT_EQ(all_allowed(patient.allowed()), before);
  for (const char c : std::string_view("\"]]")) patient.accept(c);
  EXPECT_TRUE(patient.is_complete());
}

TEST(Follower, EverythingIsFreeUntilTheEndOfThoughts) {
  const Tokens& tokens = small_vocabulary();
  const auto found = std::find(tokens.texts.begin(), tokens.texts.end(), "</think>");
  const auto end_of_thoughts = static_cast<std::int32_t>(found - tokens.texts.begin());
  Follower follower(std::make_shared<MaskCache>(Grammar::any_json().shared(), tokens.vocabulary), end_of_thoughts);
  EXPECT_EQ(all_allowed(follower.allowed()).size(), tokens.texts.size() - 1);
  EXPECT_FALSE(is_allowed(follower.allowed(), tokens.end));
  for (const std::int32_t token : {std::int32_t{'a'}, tokens.control, std::int32_t{'}'}, end_of_thoughts}) {
    EXPECT_FALSE(follower.is_complete());
    follower.accept(token);
  }
  EXPECT_FALSE(is_allowed(follower.allowed(), 'a'));
  for (const char c : std::string_view("\n{}")) follower.accept(c);
  EXPECT_TRUE(is_allowed(follower.allowed(), tokens.end));
}

TEST(Limits, AVocabularyWithoutABytesTokenIsRefused) {
  std::vector<std::string> texts = small_vocabulary().texts;
  texts[0xe4].clear();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  EXPECT_THROW(Vocabulary(views, {}, {}), Error);
}

TEST(Limits, ATokenThatIsNotAllowedIsRefused) {
  Follower follower(std::make_shared<MaskCache>(Grammar::any_json().shared(), small_vocabulary().vocabulary));
  EXPECT_THROW(follower.accept('a'), Error);
  follower.accept('{');
  EXPECT_TRUE(is_allowed(follower.allowed(), '}'));
}

}  // namespace
}  // namespace thalweg::grammar
