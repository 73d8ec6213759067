// Rotary embeddings of stretched contexts: what the keys of both file formats mean, and what is refused. The logits of
// such models are compared in goldens_test.cc.

#include "checkpoint/rope_scaling.h"

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/config.h"
#include "convert/convert.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/support.h"

namespace thalweg::model {
namespace {

using checkpoint::ModelConfig;
using checkpoint::RopeScaling;
using nlohmann::json;
using Metadata = io::GgufMetadata;

const std::filesystem::path kGoldens = std::filesystem::path(THALWEG_TEST_DIR) / "model" / "goldens";
const std::vector<std::string> kScaled = {"next-yarn", "qwen35-yarn-mscale", "qwen35moe-yarn-attention",
                                          "qwen35moe-linear"};

void expect_near(const std::vector<float>& given, const std::vector<float>& expected) {
  ASSERT_EQ(given.size(), expected.size());
  for (std::size_t i = 0; i < given.size(); ++i) EXPECT_NEAR(given[i], expected[i], 1e-6F * expected[i]) << i;
}

// The tables are those of transformers 5.23 (ROPE_INIT_FUNCTIONS) for a rotary dimension of 16.
TEST(RopeScaling, GivesTheFrequenciesOfTransformers) {
  RopeScaling s;
  EXPECT_TRUE(checkpoint::rope_frequencies(s, 1e7, 16).empty());
  EXPECT_EQ(checkpoint::rope_scale(s), 1.0);

  s = {.type = RopeScaling::Type::kYarn, .factor = 4.0, .original_context = 262144};
  expect_near(checkpoint::rope_frequencies(s, 1e7, 16), {1, 0.133352146F, 0.0177827943F, 0.00237137382F, 0.00023717084F,
                                                         2.10848266e-05F, 1.40585337e-06F, 1.8747356e-07F});
  EXPECT_DOUBLE_EQ(checkpoint::rope_scale(s), 1.138629436111989);

  s = {.type = RopeScaling::Type::kYarn,
       .factor = 8.0,
       .original_context = 100,
       .attention_factor = checkpoint::yarn_magnitude(8.0, 1.0) / checkpoint::yarn_magnitude(8.0, 0.5),
       .beta_fast = 4.0,
       .beta_slow = 0.25,
       .truncate = false};
  expect_near(checkpoint::rope_frequencies(s, 1e4, 16), {1, 0.316227764F, 0.070915699F, 0.0109358253F, 0.00124999997F,
                                                         0.000395284733F, 0.000125000006F, 3.95284733e-05F});
  EXPECT_DOUBLE_EQ(checkpoint::rope_scale(s), 1.094179988101349);

  // The bounds meet: a step.
  s = {.type = RopeScaling::Type::kYarn, .factor = 2.5, .original_context = 4, .attention_factor = 1.3};
  expect_near(checkpoint::rope_frequencies(s, 1e4, 16), {1, 0.126491114F, 0.0399999991F, 0.0126491114F, 0.00400000019F,
                                                         0.00126491114F, 0.00039999999F, 0.000126491112F});
  EXPECT_EQ(checkpoint::rope_scale(s), 1.3);

  s = {.type = RopeScaling::Type::kYarn, .factor = 0.5, .original_context = 1024};
  expect_near(checkpoint::rope_frequencies(s, 1e4, 16),
              {1, 0.316227764F, 0.125F, 0.0474341661F, 0.0175000001F, 0.00632455572F, 0.00200000009F, 0.000632455572F});
  EXPECT_EQ(checkpoint::rope_scale(s), 1.0);

  s = {.type = RopeScaling::Type::kLinear, .factor = 3.0};
  expect_near(checkpoint::rope_frequencies(s, 1e7, 16),
              {0.333333343F, 0.0444507152F, 0.0059275981F, 0.00079045794F, 0.000105409265F, 1.40565508e-05F,
               1.8744712e-06F, 2.49964756e-07F});
  EXPECT_EQ(checkpoint::rope_scale(s), 1.0);
}

// ---- config.json

// A small folder whose configuration's text model is changed before it is read.
class Folder {
 public:
  explicit Folder(const std::string& architecture = "qwen35moe") {
    TinySpec spec;
    spec.architecture = architecture;
    spec.layers = spec.interval = 2;
    const TinyModel tiny(spec);
    tiny.write_hugging_face(folder_ / "hf");
    config_ = json::parse(tiny.config_json());
    source_.emplace(folder_ / "hf");
  }

  ModelConfig read(const std::function<void(json&)>& change) const {
    json config = config_;
    change(config.contains("text_config") ? config["text_config"] : config);
    return checkpoint::read_config(io::JsonObject::parse(config.dump(), "config.json"), *source_);
  }

  void refused(const std::function<void(json&)>& change, std::initializer_list<std::string_view> parts) const {
    expect_error([&] { read(change); }, parts);
  }

 private:
  TempFolder folder_;
  json config_;
  std::optional<io::SafetensorsFile> source_;
};

TEST(RopeScaling, IsReadFromAFolder) {
  const Folder folder;
  const auto read = [&](const json& rope) {
    return folder.read([&](json& text) { text["rope_parameters"].update(rope); });
  };
  ModelConfig config = read({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}});
  EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kYarn);
  EXPECT_EQ(config.rope_scaling.original_context, 512);
  EXPECT_EQ(config.context, 4096);
  EXPECT_FALSE(config.rope_scaling.attention_factor);
  EXPECT_EQ(config.rope_frequencies, checkpoint::rope_frequencies(config.rope_scaling, 1e7, 16));
  EXPECT_EQ(config.rope_frequencies.size(), 8U);

  // Without a factor it is the ratio of the contexts; null is none.
  config =
      read({{"type", "yarn"}, {"rope_type", nullptr}, {"factor", nullptr}, {"original_max_position_embeddings", 512}});
  EXPECT_EQ(config.rope_scaling.factor, 8.0);
  // Without an original context it is the model's.
  config = read({{"rope_type", "yarn"}, {"factor", 4}});
  EXPECT_EQ(config.rope_scaling.original_context, 4096);
  // A key beside the object goes first.
  config = folder.read([](json& text) {
    text["original_max_position_embeddings"] = 55;
    text["rope_parameters"].update({{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 77}});
  });
  EXPECT_EQ(config.rope_scaling.original_context, 55);

  config = read({{"rope_type", "yarn"},
                 {"factor", 4},
                 {"attention_factor", 1.5},
                 {"mscale", 2.0},
                 {"mscale_all_dim", 0.5},
                 {"beta_fast", 0},
                 {"beta_slow", 2},
                 {"truncate", false}});
  EXPECT_EQ(config.rope_scaling.attention_factor, 1.5);
  EXPECT_FALSE(config.rope_scaling.beta_fast);  // 0 is as good as missing
  EXPECT_EQ(config.rope_scaling.beta_slow, 2.0);
  EXPECT_FALSE(config.rope_scaling.truncate);
  config = read({{"rope_type", "yarn"}, {"factor", 4}, {"mscale", 2.0}});  // one alone says nothing
  EXPECT_FALSE(config.rope_scaling.attention_factor);
  config = read({{"rope_type", "yarn"}, {"factor", 4}, {"mscale", 2.0}, {"mscale_all_dim", 0.5}});
  EXPECT_DOUBLE_EQ(*config.rope_scaling.attention_factor, (0.2 * std::log(4) + 1) / (0.05 * std::log(4) + 1));

  config = read({{"rope_type", "linear"}, {"factor", 2.0}, {"attention_factor", 3.0}});
  EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kLinear);
  EXPECT_EQ(checkpoint::rope_scale(config.rope_scaling), 1.0);
  config = read({{"rope_type", "mrope"}});
  EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kNone);
}

TEST(RopeScaling, OldKeysMeanTheSame) {
  const Folder folder("qwen3next");  // rope_theta stands beside
  const ModelConfig config = folder.read([](json& text) {
    text["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  });
  EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kYarn);
  EXPECT_EQ(config.rope_theta, 1e7F);
  EXPECT_EQ(config.rotary_dim, 16);
  // Of two objects, rope_scaling is read, and the other's theta is not.
  const Folder both;
  const auto add = [](json& text) { text["rope_scaling"] = {{"type", "linear"}, {"factor", 2}}; };
  both.refused(add, {"rope_theta"});
  const ModelConfig chosen = both.read([&](json& text) {
    add(text);
    text["rope_parameters"].update({{"rope_type", "dynamic"}});
    text.update({{"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}});
  });
  EXPECT_EQ(chosen.rope_scaling.factor, 2.0);
  EXPECT_EQ(chosen.rope_theta, 1e6F);
  EXPECT_EQ(chosen.rotary_dim, 32);
}

TEST(RopeScaling, OtherTypesAndBadNumbersInAFolderAreNamed) {
  const Folder folder;
  const auto refused = [&](const json& rope, std::initializer_list<std::string_view> parts) {
    folder.refused([&](json& text) { text["rope_parameters"].update(rope); }, parts);
  };
  for (const char* type : {"dynamic", "llama3", "longrope", "su", "proportional"}) {
    refused({{"rope_type", type}, {"factor", 2}}, {"text_config.rope_parameters.rope_type", "linear or yarn", type});
    folder.refused(
        [&](json& text) {
          text["rope_scaling"] = {{"type", type}};
          text["rope_theta"] = 1e7;
          text["partial_rotary_factor"] = 0.25;
        },
        {"text_config.rope_scaling.type", type});
  }
  refused({{"rope_type", "linear"}}, {"factor"});
  for (const char* type : {"linear", "yarn"}) {
    refused({{"rope_type", type}, {"factor", 0}}, {"rope_parameters.factor", "positive", "0"});
    refused({{"rope_type", type}, {"factor", -2}}, {"rope_parameters.factor", "positive", "-2"});
    refused({{"rope_type", type}, {"factor", 1e300}}, {"rope_parameters.factor", "positive"});
    refused({{"rope_type", type}, {"factor", "4"}}, {"rope_parameters.factor"});
  }
  const auto yarn = [&](const char* key, const json& value, std::initializer_list<std::string_view> parts) {
    refused({{"rope_type", "yarn"}, {"factor", 4}, {key, value}}, parts);
  };
  yarn("original_max_position_embeddings", 0, {"rope_parameters.original_max_position_embeddings", "from 1", "0"});
  yarn("attention_factor", -1.0, {"rope_parameters.attention_factor", "positive", "-1"});
  yarn("beta_fast", -32, {"rope_parameters.beta_fast", "positive", "-32"});
  yarn("beta_slow", -1, {"rope_parameters.beta_slow", "positive", "-1"});
  yarn("mscale_all_dim", -1, {});
  yarn("truncate", 1, {"rope_parameters.truncate"});
  // log(theta) = 0: no pair has a wavelength of its own.
  yarn("rope_theta", 1.0, {"rope_parameters.factor", "finite frequencies"});
}

// ---- GGUF

class Gguf {
 public:
  Gguf() {
    TinySpec spec;
    spec.layers = spec.interval = 2;
    TinyModel(spec).write_gguf(folder_ / "model.gguf");
    file_.emplace(folder_ / "model.gguf");
  }

  using Keys = std::vector<std::pair<std::string, io::GgufValue>>;

  // With keys "qwen35moe.rope.<key>".
  ModelConfig read(const Keys& keys) const {
    Metadata metadata = file_->metadata();
    for (const auto& [key, value] : keys) metadata.set("qwen35moe.rope." + key, value);
    return checkpoint::read_config(metadata, *file_, "model.gguf");
  }

 private:
  TempFolder folder_;
  std::optional<io::GgufFile> file_;
};

io::GgufValue text(const char* value) { return std::string(value); }

TEST(RopeScaling, IsReadFromGguf) {
  const Gguf gguf;
  const auto type = [&](const Gguf::Keys& keys) { return gguf.read(keys).rope_scaling.type; };
  EXPECT_EQ(type({}), RopeScaling::Type::kNone);
  EXPECT_EQ(type({{"scaling.type", text("none")}, {"scaling.factor", 4.0F}}), RopeScaling::Type::kNone);
  EXPECT_EQ(type({{"scaling.type", text("linear")}}), RopeScaling::Type::kNone);
  // llama.cpp takes linear for granted, and knows an older key.
  for (const char* key : {"scaling.factor", "scale_linear"}) {
    const ModelConfig config = gguf.read({{key, 4.0F}});
    EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kLinear);
    EXPECT_EQ(config.rope_frequencies[0], 0.25F);
  }
  EXPECT_EQ(type({{"scaling.factor", 0.0F}}), RopeScaling::Type::kNone);

  const Gguf::Keys yarn = {{"scaling.type", text("yarn")},
                           {"scaling.factor", 4.0F},
                           {"scaling.original_context_length", std::uint32_t{512}},
                           {"scaling.finetuned", true}};
  const auto with = [&](Gguf::Keys more) {
    more.insert(more.begin(), yarn.begin(), yarn.end());
    return gguf.read(more);
  };
  ModelConfig config = with({});
  EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kYarn);
  EXPECT_EQ(config.rope_scaling.original_context, 512);
  EXPECT_EQ(config.context, 4096);
  const double magnitude = 0.1 * std::log(4) + 1;
  EXPECT_DOUBLE_EQ(checkpoint::rope_scale(config.rope_scaling), magnitude);
  const auto scale = [&](const Gguf::Keys& more) { return checkpoint::rope_scale(with(more).rope_scaling); };
  EXPECT_EQ(scale({{"scaling.yarn_attn_factor", 1.5F}}), 1.5);
  EXPECT_DOUBLE_EQ(scale({{"scaling.attn_factor", 1.5F}}), 1.5 * magnitude);
  EXPECT_DOUBLE_EQ(scale({{"scaling.yarn_log_multiplier", 0.5F}}), magnitude / (0.05 * std::log(4) + 1));
  EXPECT_EQ(scale({{"scaling.yarn_log_multiplier", 1.0F}}), 1.0);
  EXPECT_DOUBLE_EQ(scale({{"scaling.yarn_log_multiplier", 0.0F}}), magnitude);
  EXPECT_DOUBLE_EQ(scale({{"scaling.yarn_ext_factor", -1.0F}}), magnitude);
  config = with({{"scaling.yarn_beta_fast", 8.0F}, {"scaling.yarn_beta_slow", 0.5F}});
  EXPECT_EQ(config.rope_scaling.beta_fast, 8.0);
  EXPECT_EQ(config.rope_scaling.beta_slow, 0.5);
  EXPECT_EQ(gguf.read({{"scaling.type", text("yarn")}, {"scaling.factor", 2.0F}}).rope_scaling.original_context, 4096);
  EXPECT_EQ(checkpoint::rope_scale(gguf.read({{"scaling.type", text("yarn")}}).rope_scaling), 1.0);
}

TEST(RopeScaling, OtherTypesAndBadNumbersInGgufAreNamed) {
  const Gguf gguf;
  const auto refused = [&](const Gguf::Keys& keys, std::initializer_list<std::string_view> parts) {
    expect_error([&] { gguf.read(keys); }, parts);
  };
  refused({{"scaling.type", text("longrope")}}, {"qwen35moe.rope.scaling.type", "linear or yarn", "longrope"});
  refused({{"scaling.type", std::uint32_t{1}}}, {"qwen35moe.rope.scaling.type"});
  refused({{"scaling.factor", -4.0F}}, {"rope.scaling.factor", "positive", "-4"});
  refused({{"scale_linear", -4.0F}}, {"rope.scale_linear", "positive", "-4"});
  const auto yarn = [&](const char* key, const io::GgufValue& value, std::string_view given) {
    refused({{"scaling.type", text("yarn")}, {"scaling.factor", 4.0F}, {key, value}}, {key, given});
  };
  yarn("scaling.original_context_length", std::uint32_t{0}, "0");
  yarn("scaling.attn_factor", 0.0F, "0");
  yarn("scaling.yarn_attn_factor", -1.0F, "-1");
  yarn("scaling.yarn_beta_fast", 0.0F, "0");
  yarn("scaling.yarn_beta_slow", -1.0F, "-1");
  yarn("scaling.yarn_ext_factor", 0.5F, "0.5");
  yarn("scaling.yarn_log_multiplier", -100.0F, "-");
}

// ---- whole models

Logits logits_of(const std::string& path) {
  Model model = Model::load(path, precise());
  Sequence sequence = model.start();
  return logits_of_each(model, sequence, random_tokens(200, static_cast<int>(model.info().vocabulary) - 1, 12));
}

// A copy of a golden model whose text configuration is changed.
std::string changed(const std::string& name, const TempFolder& folder, const std::function<void(json&)>& change) {
  std::filesystem::create_directories(folder / name);
  std::filesystem::copy_file(kGoldens / name / "model.safetensors", folder / (name + "/model.safetensors"));
  json config = json::parse(read_file((kGoldens / name / "config.json").string()));
  change(config.contains("text_config") ? config["text_config"] : config);
  write_file(folder / (name + "/config.json"), config.dump());
  return folder / name;
}

TEST(RopeScaling, ChangesTheGoldenModels) {
  for (const std::string& name : kScaled) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    const std::string plain =
        changed(name, folder, [](json& text) { text["rope_parameters"]["rope_type"] = "default"; });
    EXPECT_GT(difference(logits_of(plain), logits_of((kGoldens / name).string())), 1e-2);
  }
}

TEST(RopeScaling, SurvivesAConversion) {
  const std::map<std::string, double> factors = {
      {"next-yarn", 4.0}, {"qwen35-yarn-mscale", 8.0}, {"qwen35moe-yarn-attention", 2.5}, {"qwen35moe-linear", 3.0}};
  for (const std::string& name : kScaled) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    std::string from = (kGoldens / name).string();
    const auto convert = [&] { convert::convert_model(from, folder / "out.gguf", convert::type_mix("F32"), {}); };
    if (name == "qwen35-yarn-mscale") {
      expect_error(convert, {"rope_parameters.truncate", "GGUF has no key"});
      from = changed(name, folder, [](json& text) { text["rope_parameters"]["truncate"] = true; });
    }
    convert();
    EXPECT_LT(difference(logits_of(folder / "out.gguf"), logits_of(from)), 2e-5);
    const Model model = Model::load(folder / "out.gguf", precise());
    EXPECT_EQ(model.info().context, 1024);
    EXPECT_EQ(model.info().rope_scaling, name == "qwen35moe-linear" ? "linear" : "yarn");
    EXPECT_EQ(model.info().rope_factor, factors.at(name));
  }
}

// The keys of llama.cpp's converter, and no others.
TEST(RopeScaling, IsWrittenInTheKeysOfLlamaCpp) {
  const auto written = [](const std::string& name) {
    const TempFolder folder;
    convert::convert_model((kGoldens / name).string(), folder / "out.gguf", convert::type_mix("F32"), {});
    std::map<std::string, io::GgufValue> keys;
    const io::GgufFile file(folder / "out.gguf");
    for (const auto& [key, value] : file.metadata().entries()) {
      const std::size_t at = key.find(".rope.scaling.");
      if (at != std::string::npos) keys[key.substr(at + 14)] = value;
    }
    return keys;
  };
  using Keys = std::map<std::string, io::GgufValue>;
  EXPECT_EQ(written("next-yarn"),
            (Keys{{"type", text("yarn")}, {"factor", 4.0F}, {"original_context_length", std::uint32_t{64}}}));
  EXPECT_EQ(written("qwen35moe-yarn-attention"), (Keys{{"type", text("yarn")},
                                                       {"factor", 2.5F},
                                                       {"original_context_length", std::uint32_t{128}},
                                                       {"yarn_attn_factor", 1.3F},
                                                       {"yarn_beta_fast", 8.0F},
                                                       {"yarn_beta_slow", 0.5F}}));
  EXPECT_EQ(written("qwen35moe-linear"), (Keys{{"type", text("linear")}, {"factor", 3.0F}}));
  EXPECT_EQ(written("qwen35-r1"), Keys{});
}

// Keys that were rotated otherwise are another model's.
TEST(RopeScaling, IsPartOfASession) {
  const TempFolder folder;
  const std::string golden = (kGoldens / "next-yarn").string();
  const std::vector<std::int32_t> tokens = random_tokens(20, 299, 3);
  Model model = Model::load(golden, precise());
  Sequence sequence = model.start();
  model.prefill(sequence, tokens);
  sequence.save(folder / "session");
  Model same = Model::load(golden, precise());
  Sequence restored = same.start();
  restored.restore(folder / "session");
  EXPECT_TRUE(same_bits(restored.logits(), sequence.logits()));
  for (const char* key : {"factor", "attention_factor"}) {
    const TempFolder copy;
    Model other =
        Model::load(changed("next-yarn", copy, [&](json& text) { text["rope_parameters"][key] = 2.0; }), precise());
    Sequence refused = other.start();
    expect_error([&] { refused.restore(folder / "session"); }, {"session"});
  }
}

}  // namespace
}  // namespace thalweg::model
