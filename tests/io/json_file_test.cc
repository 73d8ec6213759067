#include "io/json_file.h"

#include "io/files.h"

namespace thalweg::io {
namespace {

constexpr const char* kConfig = R"({
  "model_type": "qwen3_5_moe",
  "text_config": {"hidden_size": 256, "rms_norm_eps": 1e-06, "tied": true, "layers": ["a", "b"], "nothing": null,
                  "rope": {"theta": 10000000, "sections": [11, 11, 10]}},
  "huge": 18446744073709551615
})";

TEST(JsonObject, Reads) {
  const TempFolder folder;
  write_file(folder / "config.json", kConfig);
  JsonObject text = [&] {
    const JsonObject config = JsonObject::read(folder / "config.json");
    EXPECT_EQ(config.keys(), (std::vector<std::string>{"huge", "model_type", "text_config"}));
    EXPECT_EQ(config.string("model_type"), "qwen3_5_moe");
    return config.object("text_config");
  }();
  // An inner object outlives the outer one.
  EXPECT_EQ(text.integer("hidden_size"), 256);
  EXPECT_EQ(text.number("hidden_size"), 256.0);
  EXPECT_EQ(text.number("rms_norm_eps"), 1e-6);
  EXPECT_EQ(text.boolean("tied"), true);
  EXPECT_EQ(text.strings("layers"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(text.object("rope").integers("sections"), (std::vector<std::int64_t>{11, 11, 10}));
  EXPECT_TRUE(text.is_object("rope"));
  EXPECT_TRUE(text.is_array("layers"));
  EXPECT_FALSE(text.is_array("rope"));
  EXPECT_FALSE(text.is_object("none"));
  EXPECT_FALSE(text.has("nothing"));
  EXPECT_EQ(text.integer("nothing", 7), 7);
  EXPECT_EQ(text.number("none", 0.5), 0.5);
  EXPECT_EQ(text.boolean("none", true), true);
  EXPECT_EQ(text.string("none", "x"), "x");
}

TEST(JsonObject, ErrorsNameFileAndKey) {
  const JsonObject config = JsonObject::parse(kConfig, "config.json");
  const JsonObject text = config.object("text_config");
  expect_error([&] { text.object("rope").integer("base"); }, "key text_config.rope.base",
               {"config.json", "no such key"});
  expect_error([&] { text.integer("tied"); }, "key text_config.tied", {"an integer", "got true"});
  expect_error([&] { text.integer("rms_norm_eps", 1); }, "key text_config.rms_norm_eps", {"an integer", "1e-06"});
  expect_error([&] { config.integer("huge"); }, "key huge", {"below 2^63"});
  expect_error([&] { config.number("model_type"); }, "key model_type", {"a number", "a string"});
  expect_error([&] { text.boolean("hidden_size"); }, "key text_config.hidden_size", {"true or false", "256"});
  expect_error([&] { text.string("rope"); }, "key text_config.rope", {"a string", "an object"});
  expect_error([&] { text.object("layers"); }, "key text_config.layers", {"an object", "an array"});
  expect_error([&] { text.integers("layers"); }, "key text_config.layers", {"integers", "the element a string"});
  expect_error([&] { text.integers("tied"); }, "key text_config.tied", {"an array of integers", "true"});
  expect_error([&] { text.object("rope").strings("sections"); }, "key text_config.rope.sections", {"the element 11"});
  expect_error([&] { text.strings("none"); }, "key text_config.none", {"an array of strings", "no such key"});
}

TEST(JsonObject, RefusesWhatIsNotOneObject) {
  const auto expect = [](std::string_view text, std::string_view argument,
                         std::initializer_list<std::string_view> parts) {
    expect_error([&] { JsonObject::parse(text, "x.json"); }, argument, parts);
  };
  for (const char* text : {"", "{", "{\"a\":}", "{} {}", "{\"a\": 1e999}", "{\"a\": \"\xff\"}", "nan", "{'a': 1}"}) {
    expect(text, "text", {"x.json", "JSON"});
  }
  expect("3", "text", {"a JSON object", "3"});
  expect(R"({"a": {"b": 1, "b": 2}})", "key b", {"once", "twice"});
  expect("{\"a\": " + std::string(1000, '['), "text", {"nested at most 64 deep"});
  EXPECT_EQ(JsonObject::parse(R"({"a": {"b": 1}, "b": {"b": 2}})", "x").object("b").integer("b"), 2);
}

}  // namespace
}  // namespace thalweg::io
