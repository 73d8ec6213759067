// What grammars cost, with a vocabulary of 250,000 tokens: to compile, and for each token. Bounds are generous; the
// measured numbers are in docs/grammar.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <random>
#include <string>

#include "support.h"

namespace thalweg::grammar {
namespace {

// Of the processor: what else runs on the machine does not count.
double milliseconds_since(std::clock_t begin) {
  return static_cast<double>(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC;
}

struct Named {
  const char* name;
  std::string schema;
};

std::vector<Named> usual_schemas() {
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

const Tokens& large_vocabulary() {
  static const Tokens tokens = make_tokens(250'000, 3);
  return tokens;
}

// Times of masks, in milliseconds.
struct Times {
  double mean = 0;
  double worst = 0;
};

// As models write: mostly long tokens in strings, which end after some.
Times walk(const std::shared_ptr<MaskCache>& cache, std::mt19937& random) {
  const Tokens& tokens = large_vocabulary();
  Times times;
  int count = 0;
  for (; count < 600;) {
    Follower follower(cache);
    for (int in_string = 0; count < 600; ++count) {
      const std::clock_t begin = std::clock();
      const std::span<const std::uint32_t> mask = follower.allowed();
      const double milliseconds = milliseconds_since(begin);
      times.mean += milliseconds;
      times.worst = std::max(times.worst, milliseconds);
      in_string = is_allowed(mask, '#') ? in_string + 1 : 0;
      std::int32_t token = tokens.end;
      if (in_string > 8 && is_allowed(mask, '"')) token = '"';
      if (token != '"' && (!is_allowed(mask, token) || random() % 4 != 0)) {
        const std::vector<std::int32_t> allowed = all_allowed(mask);
        token = allowed[random() % allowed.size()];
      }
      if (token == tokens.end) break;
      const std::clock_t accepting = std::clock();
      follower.accept(token);
      times.mean += milliseconds_since(accepting);
    }
  }
  times.mean /= count;
  return times;
}

TEST(GrammarSpeed, CompilesAndMasksInTime) {
  const Tokens& tokens = large_vocabulary();
  const std::vector<std::string_view> views(tokens.texts.begin(), tokens.texts.end());
  std::clock_t begin = std::clock();
  const Vocabulary vocabulary(views, {tokens.end}, {tokens.control});
  const double to_build = milliseconds_since(begin);
  std::cout << "trie of " << views.size() << " tokens: " << to_build << " ms\n";
  EXPECT_LT(to_build, 2000);
  std::cout << "schema               compile  mask: mean  worst  again: mean  worst (ms)\n" << std::fixed;
  std::mt19937 random(4);
  for (const Named& named : usual_schemas()) {
    begin = std::clock();
    const Grammar grammar = Grammar::json_schema(named.schema);
    const double to_compile = milliseconds_since(begin);
    const auto cache = std::make_shared<MaskCache>(grammar.shared(), tokens.vocabulary);
    const Times cold = walk(cache, random);
    const Times warm = walk(cache, random);
    std::cout << std::left << std::setw(20) << named.name << std::right << std::setprecision(2) << std::setw(8)
              << to_compile << std::setprecision(4) << std::setw(12) << cold.mean << std::setprecision(2)
              << std::setw(7) << cold.worst << std::setprecision(4) << std::setw(13) << warm.mean
              << std::setprecision(2) << std::setw(7) << warm.worst << '\n';
    EXPECT_LT(to_compile, 200) << named.name;
    EXPECT_LT(warm.mean, 1) << named.name;
  }
}

}  // namespace
}  // namespace thalweg::grammar
