// Texts of a grammar are valid, and valid documents are texts of it.

#include <gtest/gtest.h>

#include <random>

#include "documents.h"
#include "schemas.h"
#include "support.h"
#include "thalweg/error.h"
#include "validator.h"

namespace thalweg::grammar {
namespace {

class EverySchema : public testing::TestWithParam<std::string_view> {
 protected:
  EverySchema() : schema_(Value::parse(GetParam())), grammar_(Grammar::json_schema(GetParam())) {
    const std::uint32_t seed = std::random_device()();
    random_.seed(seed);
    trace_ = "seed " + std::to_string(seed) + ", " + std::string(GetParam());
  }

  bool is_valid_text(const std::string& text) const {
    const Value value = Value::parse(text, nullptr, false);
    return !value.is_discarded() && is_valid(value, schema_, schema_);
  }

  Value schema_;
  Grammar grammar_;
  std::mt19937 random_;
  std::string trace_;
};

TEST_P(EverySchema, RandomTextsAreValid) {
  SCOPED_TRACE(trace_);
  for (int i = 0; i < 12 && !HasFailure(); ++i) {
    const std::string text = random_text(grammar_, small_vocabulary(), random_);
    EXPECT_TRUE(is_valid_text(text)) << text;
    EXPECT_TRUE(accepts(grammar_, text)) << text;
  }
}

TEST_P(EverySchema, DocumentsAreAcceptedAndDamagedOnesAreNot) {
  SCOPED_TRACE(trace_);
  for (int i = 0; i < 40 && !HasFailure(); ++i) {
    const Value value = random_document(schema_, schema_, random_);
    ASSERT_TRUE(is_valid(value, schema_, schema_)) << value;
    const std::string text = i % 2 == 0 ? value.dump() : value.dump(2);
    EXPECT_TRUE(accepts(grammar_, text)) << text;
    for (int j = 0; j < 10; ++j) {
      const std::string other = damaged(value, random_).dump();
      EXPECT_TRUE(is_valid_text(other) || !accepts(grammar_, other)) << other;
      const std::string bytes = damaged(text, random_);
      EXPECT_TRUE(is_valid_text(bytes) || !accepts(grammar_, bytes)) << bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EverySchema, testing::ValuesIn(kSchemas),
                         [](const auto& parameter) { return "Number" + std::to_string(parameter.index); });

TEST(AnyJson, RandomTextsAreObjects) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 30; ++i) {
    const std::string text = random_text(Grammar::any_json(), small_vocabulary(), random);
    const Value value = Value::parse(text, nullptr, false);
    EXPECT_TRUE(value.is_object()) << text;
  }
}

TEST(AnyJson, AcceptsWhatModelsWrite) {
  const Grammar grammar = Grammar::any_json();
  EXPECT_TRUE(accepts(grammar, "{}"));
  EXPECT_TRUE(accepts(grammar, R"({"a": [1, -2.5e+10, true, null, {"b":"\u00e9\ud83d\ude00\/"}], "c": {}})"));
  EXPECT_TRUE(accepts(grammar, "\n{\n  \"a\": [\n    1\n  ]\n}"));
  for (const char* text :
       {"", "[]", "{\"a\":1,}", "{\"a\":01}", "{\"a\":\"\\x\"}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\xff\"}",
        "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\n\"}", "{\"a\":1e999}", "{} {}"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(AnyJson, WhiteSpaceEnds) {
  EXPECT_FALSE(accepts(Grammar::any_json(), "{  }"));
  EXPECT_FALSE(accepts(Grammar::any_json(), "{\n\n}"));
  EXPECT_FALSE(accepts(Grammar::any_json(), "{\n" + std::string(33, ' ') + "}"));
}

TEST(Schema, PropertiesKeepTheirOrder) {
  const Grammar grammar = Grammar::json_schema(R"({"properties": {"b": {"type": "null"}, "a": {"type": "null"}}})");
  EXPECT_TRUE(accepts(grammar, R"({"b":null,"a":null})"));
  EXPECT_TRUE(accepts(grammar, R"({"a":null})"));
  EXPECT_FALSE(accepts(grammar, R"({"a":null,"b":null})"));
}

TEST(Schema, FormatsAreExact) {
  const auto accepted = [](const std::string& format, const std::string& text) {
    const Grammar grammar = Grammar::json_schema(R"({"type": "string", "format": ")" + format + "\"}");
    return accepts(grammar, '"' + text + '"');
  };
  EXPECT_TRUE(accepted("date", "2000-02-29"));
  EXPECT_FALSE(accepted("date", "1900-02-29"));
  EXPECT_FALSE(accepted("date", "2023-04-31"));
  EXPECT_FALSE(accepted("date", "2023-13-01"));
  EXPECT_FALSE(accepted("time", "24:00:00Z"));
  EXPECT_FALSE(accepted("ipv4", "256.1.1.1"));
  EXPECT_FALSE(accepted("ipv4", "01.1.1.1"));
  EXPECT_FALSE(accepted("email", "a@b@c.de"));
}

TEST(Schema, AdditionalKeysAreNotThoseOfProperties) {
  const Grammar grammar = Grammar::json_schema(
      R"({"properties": {"ab": {"type": "null"}, "a\"c": {"type": "null"}}, "additionalProperties": {"type": "boolean"}})");
  for (const char* text : {R"({"a":true})", R"({"abc":true})", R"({"":true})", R"({"a\"":true})", R"({"\n":true})"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {R"({"ab":true})", R"({"a\"c":true})", R"({"\u0061b":true})"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Schema, EveryIntegerNearTheBounds) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 100; ++i) {
    const int scale = 1 << random() % 14;
    const auto any = [&] { return static_cast<int>(random() % static_cast<unsigned>(2 * scale)) - scale; };
    const int low = any();
    const int high = low + static_cast<int>(random() % static_cast<unsigned>(scale + 3));
    const Value schema = {{"type", i % 2 == 0 ? "integer" : "number"}, {"minimum", low}, {"maximum", high}};
    const Grammar grammar = Grammar::json_schema(schema.dump());
    for (int number = low - 12; number <= high + 12; number += number == low + 12 ? std::max(1, high - low - 24) : 1) {
      EXPECT_EQ(accepts(grammar, std::to_string(number)), number >= low && number <= high) << schema << number;
    }
  }
}

}  // namespace
}  // namespace thalweg::grammar
