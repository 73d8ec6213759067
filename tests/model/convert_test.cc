// Conversion against files that the tests' own code writes in the same conventions.

#include "convert/convert.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "convert/published_shapes.h"
#include "convert/synthesize.h"
#include "convert/tensor_plan.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "model/support.h"

namespace thalweg::model {
namespace {

std::vector<std::pair<std::string, TinySpec>> specs() {
  std::vector<std::pair<std::string, TinySpec>> list;
  list.emplace_back("moe", TinySpec{});
  TinySpec spec;
  spec.tied = true;
  spec.separate_experts = true;
  spec.value_heads = 6;
  list.emplace_back("moe_separate_experts", spec);
  spec = {};
  spec.architecture = "qwen35";
  spec.experts = 0;
  spec.key_heads = spec.value_heads = 4;
  spec.interval = 2;
  list.emplace_back("dense", spec);
  spec = {};
  spec.architecture = "qwen3next";
  spec.dense_layers = {1};
  spec.renormalize = false;
  list.emplace_back("next", spec);
  return list;
}

convert::Converted convert_to(const std::string& in, const std::string& out, const std::string& type) {
  return convert::convert_model(in, out, convert::type_mix(type), {});
}

std::string_view bytes_of_tensor(const ConstTensor& tensor) {
  return {static_cast<const char*>(tensor.data), static_cast<std::size_t>(bytes_of(tensor.dtype, tensor.size()))};
}

TEST(Convert, GivesTheFileOfTheConventions) {
  for (auto& [name, spec] : specs()) {
    SCOPED_TRACE(name);
    TempFolder folder;
    const TinyModel tiny(spec);
    tiny.write_hugging_face(folder / "hf");
    tiny.write_gguf(folder / "expected.gguf");
    const convert::Converted done = convert_to(folder / "hf", folder / "given.gguf", "F32");
    EXPECT_EQ(done.architecture, spec.architecture);
    const io::GgufFile expected(folder / "expected.gguf");
    const io::GgufFile given(folder / "given.gguf");
    std::size_t compared = 0;
    for (const std::string& tensor : expected.names()) {
      ASSERT_TRUE(given.has(tensor)) << tensor;
      EXPECT_EQ(to_string(given.tensor(tensor)), to_string(expected.tensor(tensor))) << tensor;
      EXPECT_EQ(bytes_of_tensor(given.tensor(tensor)), bytes_of_tensor(expected.tensor(tensor))) << tensor;
      ++compared;
    }
    EXPECT_EQ(given.names().size(), compared);
    for (const auto& [key, value] : expected.metadata().entries()) {
      // Dense sizes of models without dense layers and flags at their default may be left out.
      if (key.starts_with("tokenizer.")) continue;
      if (key.ends_with("feed_forward_length") && !given.metadata().has(key)) continue;
      if (key.ends_with("expert_weights_norm") && spec.renormalize) continue;
      ASSERT_TRUE(given.metadata().has(key)) << key;
      EXPECT_EQ(*given.metadata().find(key), value) << key;
    }
  }
}

TEST(Convert, ModelsGiveTheSameLogitsAfterIt) {
  for (auto& [name, spec] : specs()) {
    SCOPED_TRACE(name);
    TempFolder folder;
    const TinyModel tiny(spec);
    tiny.write_hugging_face(folder / "hf", DType::kBF16);
    convert_to(folder / "hf", folder / "f32.gguf", "F32");
    convert_to(folder / "hf", folder / "bf16.gguf", "BF16");
    const std::vector<std::int32_t> tokens = random_tokens(40, spec.vocabulary, 3);
    const auto expected = tiny.logits(tokens);
    for (const char* file : {"f32.gguf", "bf16.gguf"}) {
      Model model = Model::load(folder / file, precise());
      Sequence sequence = model.start();
      EXPECT_LT(difference(logits_of_each(model, sequence, tokens), expected), 2e-5) << file;
    }
  }
}

TEST(Convert, LeavesOutASharedExpertOfSizeZero) {
  TinySpec spec;
  spec.shared_hidden = 0;
  TempFolder folder;
  const TinyModel tiny(spec);
  tiny.write_hugging_face(folder / "hf");
  convert_to(folder / "hf", folder / "out.gguf", "F32");
  for (const std::string& name : io::GgufFile(folder / "out.gguf").names()) {
    EXPECT_EQ(name.find("shexp"), std::string::npos) << name;
  }
  const std::vector<std::int32_t> tokens = random_tokens(30, spec.vocabulary, 3);
  Model model = Model::load(folder / "out.gguf", precise());
  Sequence sequence = model.start();
  EXPECT_LT(difference(logits_of_each(model, sequence, tokens), tiny.logits(tokens)), 2e-5);
}

TEST(Convert, PacksFromEitherKindOfFileAlike) {
  TempFolder folder;
  const TinyModel tiny(TinySpec{});
  tiny.write_hugging_face(folder / "hf");
  convert_to(folder / "hf", folder / "f32.gguf", "F32");
  convert_to(folder / "hf", folder / "a.gguf", "q8_0");
  convert_to(folder / "f32.gguf", folder / "b.gguf", "Q8_0");
  EXPECT_EQ(read_file(folder / "a.gguf"), read_file(folder / "b.gguf"));
  // Packed tensors that keep their type are copied.
  const convert::Converted again = convert_to(folder / "a.gguf", folder / "c.gguf", "Q8_0");
  EXPECT_EQ(read_file(folder / "a.gguf"), read_file(folder / "c.gguf"));
  ASSERT_EQ(again.notes.size(), 1U);
  EXPECT_NE(again.notes[0].find("packed already (Q8_0)"), std::string::npos) << again.notes[0];
}

TEST(Convert, SaysWhereRowsDoNotFit) {
  TempFolder folder;
  TinyModel(TinySpec{}).write_hugging_face(folder / "hf");
  const convert::Converted done = convert_to(folder / "hf", folder / "out.gguf", "Q4_K_M");
  const io::GgufFile file(folder / "out.gguf");
  EXPECT_EQ(file.tensor("blk.0.ffn_gate_exps.weight").dtype, DType::kQ5_0);  // rows of 64
  EXPECT_EQ(file.tensor("blk.0.attn_qkv.weight").dtype, DType::kQ5_1);
  EXPECT_EQ(file.tensor("output.weight").dtype, DType::kQ8_0);
  EXPECT_EQ(file.tensor("blk.0.ssm_out.weight").dtype, DType::kQ5_K);  // rows of 256
  EXPECT_EQ(file.tensor("blk.0.ffn_gate_inp.weight").dtype, DType::kF32);
  const bool said = std::any_of(done.notes.begin(), done.notes.end(), [](const std::string& note) {
    return note == "ffn_gate_exps.weight: rows of 64 do not fill blocks of Q4_K (256), stored as Q5_0 (5 tensors)";
  });
  EXPECT_TRUE(said) << done.notes.front();
  EXPECT_EQ(file.metadata().integer("general.file_type"), 15);
}

TEST(Convert, MixGivesMoreBitsToWhatNeedsThem) {
  const convert::TypeMix mix = convert::type_mix("Q4_K_M");
  const std::vector<std::int64_t> shape = {512, 1024};
  const auto type = [&](const std::string& name, bool tied = false) {
    return convert::choose_type(mix, name, shape, 16, tied).dtype;
  };
  EXPECT_EQ(type("output.weight"), DType::kQ6_K);
  EXPECT_EQ(type("token_embd.weight"), DType::kQ4_K);
  EXPECT_EQ(type("token_embd.weight", true), DType::kQ6_K);
  EXPECT_EQ(type("blk.0.ffn_down.weight"), DType::kQ6_K);
  EXPECT_EQ(type("blk.2.ffn_down_exps.weight"), DType::kQ4_K);
  EXPECT_EQ(type("blk.4.attn_v.weight"), DType::kQ6_K);
  EXPECT_EQ(type("blk.15.attn_v.weight"), DType::kQ6_K);
  EXPECT_EQ(type("blk.3.attn_q.weight"), DType::kQ4_K);
  EXPECT_EQ(type("blk.3.ssm_alpha.weight"), DType::kQ8_0);
  EXPECT_EQ(type("blk.3.attn_q_norm.weight"), DType::kF32);
  EXPECT_EQ(convert::choose_type(mix, "blk.0.ffn_down_exps.weight", {16, 256, 128}, 16, false).dtype, DType::kQ5_1);
  EXPECT_EQ(
      convert::choose_type(convert::type_mix("Q6_K"), "blk.0.ffn_down_exps.weight", {16, 256, 128}, 16, false).dtype,
      DType::kQ8_0);
  EXPECT_EQ(convert::choose_type(convert::type_mix("Q4_0"), "blk.0.ffn_down.weight", {16, 100}, 16, false).dtype,
            DType::kF16);
  EXPECT_EQ(convert::choose_type(convert::type_mix("Q4_K"), "output.weight", shape, 16, false).dtype, DType::kQ4_K);
}

TEST(Convert, TakesTheTokenizerAlong) {
  TempFolder folder;
  TinySpec spec;
  spec.vocabulary = 8;
  const TinyModel tiny(spec);
  tiny.write_hugging_face(folder / "hf");
  const std::string pattern =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  nlohmann::json tokenizer = nlohmann::json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<end>", "special": true, "normalized": false},
                     {"id": 6, "content": "<tool>", "special": false, "normalized": false}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3, "abc": 4}, "merges": ["a b", "ab c"]}})");
  const auto split = [](nlohmann::json& t) -> nlohmann::json& { return t["pre_tokenizer"]["pretokenizers"][0]; };
  split(tokenizer)["pattern"]["Regex"] = pattern;
  write_file(folder / "hf/tokenizer.json", tokenizer.dump());
  write_file(folder / "hf/tokenizer_config.json",
             R"({"eos_token": {"content": "<end>"}, "pad_token": null, "chat_template": "{{ messages }}"})");
  convert_to(folder / "hf", folder / "out.gguf", "F32");
  const io::GgufMetadata metadata = io::GgufFile(folder / "out.gguf").metadata();
  EXPECT_EQ(metadata.strings("tokenizer.ggml.tokens"),
            (std::vector<std::string>{"a", "b", "ab", "c", "abc", "<end>", "<tool>", "[PAD7]"}));
  EXPECT_EQ(metadata.integers("tokenizer.ggml.token_type"), (std::vector<std::int64_t>{1, 1, 1, 1, 1, 3, 4, 5}));
  EXPECT_EQ(metadata.strings("tokenizer.ggml.merges"), (std::vector<std::string>{"a b", "ab c"}));
  EXPECT_EQ(metadata.string("tokenizer.ggml.pre"), "qwen35");
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eos_token_id"), 5);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eot_token_id"), 0);  // of config.json
  EXPECT_EQ(metadata.string("tokenizer.chat_template"), "{{ messages }}");

  nlohmann::json pairs = tokenizer;
  pairs["model"]["merges"] = nlohmann::json::parse(R"([["a", "b"], ["ab", "c"]])");
  write_file(folder / "hf/tokenizer.json", pairs.dump());
  convert_to(folder / "hf", folder / "pairs.gguf", "F32");
  EXPECT_EQ(read_file(folder / "pairs.gguf"), read_file(folder / "out.gguf"));

  const auto refused = [&](const std::function<void(nlohmann::json&)>& change,
                           std::initializer_list<std::string_view> parts) {
    nlohmann::json changed = tokenizer;
    change(changed);
    write_file(folder / "hf/tokenizer.json", changed.dump());
    expect_error([&] { convert_to(folder / "hf", folder / "bad.gguf", "F32"); }, parts);
    EXPECT_FALSE(std::filesystem::exists(folder / "bad.gguf"));
  };
  using Json = nlohmann::json;
  refused([](Json& t) { t["model"]["vocab"]["d"] = 8; }, {"token d", "from 0 to 7", "got 8"});
  refused([](Json& t) { t["model"]["merges"].push_back("a d"); }, {"merges[2]", "a d"});
  refused([&](Json& t) { split(t)["pattern"]["Regex"] = "\\w+"; }, {"pre_tokenizer", "Qwen3.5", "\\w+"});
  refused([](Json& t) { t["normalizer"] = nullptr; }, {"normalizer", "NFC", "GGUF"});
  refused([](Json& t) { t["model"]["ignore_merges"] = true; }, {"model.ignore_merges", "false", "GGUF"});
  refused([](Json& t) { t["added_tokens"][1]["normalized"] = true; }, {"added token <tool>", "normalized", "GGUF"});
}

TEST(Convert, RefusesWhatCannotBe) {
  expect_error([] { convert::type_mix("IQ4_XS"); }, {"TYPE", "read but not written"});
  expect_error([] { convert::type_mix("I32"); }, {"TYPE", "for integers"});
  expect_error([] { convert::type_mix("Q9"); }, {"one of F32, F16", "Q4_K_M", "got Q9"});
  TempFolder folder;
  TinyModel tiny(TinySpec{});
  tiny.write_hugging_face(folder / "hf");
  tiny.write_gguf(folder / "in.gguf");
  expect_error([&] { convert_to(folder / "in.gguf", folder / "in.gguf", "Q8_0"); }, {"another file than the input"});
  expect_error([&] { convert_to(folder / "in.gguf", folder / "hf", "Q8_0"); }, {"a file name", "a directory"});

  const std::string name = "model.language_model.layers.1.linear_attn.out_proj.weight";
  const TinyTensor good = tiny.tensors()[name];
  const auto refused = [&](std::initializer_list<std::string_view> parts, const std::string& type) {
    tiny.write_hugging_face(folder / "bad");
    expect_error([&] { convert_to(folder / "bad", folder / "bad.gguf", type); }, parts);
    EXPECT_FALSE(std::filesystem::exists(folder / "bad.gguf"));
    tiny.tensors()[name] = good;
  };
  tiny.tensors()[name].values[7] = NAN;
  refused({name, "finite"}, "Q8_0");
  tiny.tensors()[name].values[7] = 1e5F;
  refused({name, "that F16 holds"}, "F16");
  std::swap(tiny.tensors()[name].shape[0], tiny.tensors()[name].shape[1]);
  refused({name, "expected [64,256]", "[256,64]"}, "F32");
  tiny.tensors().erase(name);
  refused({name, "none of that name"}, "F32");
}

// Nothing is begun, whatever the file lacks: the folder holds what it held.
TEST(Convert, RefusesWhatTheRunnerRefusesBeforeItWrites) {
  TempFolder folder;
  const auto refused = [&](const std::string& in, std::initializer_list<std::string_view> parts) {
    std::filesystem::create_directories(folder / "out");
    bool asked = false;
    convert::ConvertOptions options;
    options.progress = [&](double) { asked = true; };
    expect_error([&] { convert::convert_model(in, folder / "out/new.gguf", convert::type_mix("Q8_0"), options); },
                 parts);
    expect_error([&] { Model::load(in, precise()); }, parts);
    EXPECT_FALSE(asked);
    EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
  };
  const auto rewritten = [&](const std::function<void(io::GgufMetadata&)>& change,
                             const std::function<bool(const std::string&)>& keep, const std::string& more = "") {
    const io::GgufFile good(folder / "good.gguf");
    io::GgufMetadata metadata = good.metadata();
    change(metadata);
    io::GgufWriter writer(folder / "bad.gguf", metadata);
    for (const io::GgufTensor& tensor : good.tensors()) {
      if (keep(tensor.name)) writer.declare(tensor.name, *tensor.type.dtype, tensor.shape);
    }
    if (!more.empty()) writer.declare(more, DType::kF32, {4});
    for (const io::GgufTensor& tensor : good.tensors()) {
      if (!keep(tensor.name)) continue;
      writer.write(tensor.name, good.tensor(tensor.name).data, static_cast<std::size_t>(tensor.bytes));
    }
    const std::vector<float> values(4, 1.0F);
    if (!more.empty()) writer.write(more, values.data(), values.size() * sizeof(float));
    writer.finish();
    return folder / "bad.gguf";
  };
  const auto same = [](io::GgufMetadata&) {};
  const auto all = [](const std::string&) { return true; };
  TinyModel tiny(TinySpec{});
  tiny.with_tokenizer = false;
  tiny.write_gguf(folder / "good.gguf");
  refused(rewritten(same, [](const std::string& name) { return name != "blk.1.ssm_out.weight"; }),
          {"blk.1.ssm_out.weight", "none of that name"});
  refused(rewritten(same, all, "blk.1.attn_q.bias"), {"blk.1.attn_q.bias", "no such layer"});
  refused(rewritten([](io::GgufMetadata& m) { m.set("qwen35moe.embedding_length", std::uint32_t{128}); }, all),
          {"token_embd.weight", "[101,128]"});
  refused(rewritten([](io::GgufMetadata& m) { m.erase("qwen35moe.ssm.state_size"); }, all), {"ssm.state_size"});
  refused(rewritten([](io::GgufMetadata& m) { m.set("general.architecture", std::string("llama")); }, all),
          {"general.architecture", "llama"});
  refused(rewritten([](io::GgufMetadata& m) { m.set("tokenizer.ggml.model", std::string("llama")); }, all),
          {"tokenizer.ggml.model", "llama"});

  // A tensor that the plan for the new file does not ask for.
  const std::string bias = "model.language_model.layers.1.linear_attn.out_proj.bias";
  tiny.tensors()[bias] = {{64}, std::vector<float>(64, 1.0F)};
  tiny.write_hugging_face(folder / "hf");
  refused(folder / "hf", {bias, "no such layer"});
  tiny.tensors().erase(bias);
  tiny.write_hugging_face(folder / "hf");
  nlohmann::json config = nlohmann::json::parse(tiny.config_json());
  config["text_config"]["num_hidden_layers"] = 3;
  write_file(folder / "hf/config.json", config.dump());
  refused(folder / "hf", {"layers.3.", "one more layer"});
}

TEST(Synthesize, MeetsTheSizeAndRuns) {
  for (const char* type : {"Q4_K", "Q8_0", "Q4_K_M"}) {
    for (const bool experts : {false, true}) {
      SCOPED_TRACE(std::string(type) + (experts ? " experts" : ""));
      TempFolder folder;
      convert::SynthOptions options;
      options.gigabytes = 0.045;
      options.experts = experts;
      const convert::Synthesized done = convert::synthesize(folder / "s.gguf", convert::type_mix(type), options);
      EXPECT_NEAR(static_cast<double>(done.bytes), 45e6, 5e6);
      Model model = Model::load(folder / "s.gguf", precise());
      EXPECT_EQ(static_cast<int>(model.info().layers.size()), done.layers);
      Sequence sequence = model.start();
      model.prefill(sequence, std::vector<std::int32_t>{72, 101, 108});
      for (const float logit : sequence.logits()) ASSERT_TRUE(std::isfinite(logit));
    }
  }
  TempFolder folder;
  convert::SynthOptions small;
  small.gigabytes = 0.001;
  expect_error([&] { convert::synthesize(folder / "s.gguf", convert::type_mix("F32"), small); },
               {"--gigabytes", "at least"});
}

// Files of these shapes take gigabytes, so that none is written here: their weights are counted.
TEST(Synthesize, KnowsPublishedShapes) {
  const std::map<std::string, double> billions = {
      {"Qwen3.5-35B-A3B", 35}, {"Qwen3-Next-80B-A3B", 80}, {"Qwen3.5-27B", 27}};
  ASSERT_EQ(convert::published_models().size(), billions.size());
  for (const std::string& name : convert::published_models()) {
    SCOPED_TRACE(name);
    const checkpoint::ModelConfig whole = convert::config_of(convert::published_shapes(name));
    EXPECT_EQ(whole.layers.size() % 4, 0U);
    EXPECT_EQ(whole.layers[3], LayerKind::kAttention);
    double weights = 0;
    for (const convert::TensorPlan& plan : convert::plan_hugging_face(whole, "", "", convert::NoTensors())) {
      double count = 1;
      for (const std::int64_t extent : plan.shape) count *= static_cast<double>(extent);
      weights += count;
    }
    EXPECT_NEAR(weights * 1e-9 / billions.at(name), 1.0, 0.02);
    EXPECT_EQ(convert::published_shapes(name, 8).layers, 8);
    expect_error([&] { convert::published_shapes(name, 6); }, {"--layers", "multiple of 4", "6"});
  }
  expect_error([] { convert::published_shapes("Qwen3-8B"); }, {"--like", "Qwen3.5-27B", "Qwen3-8B"});
}

}  // namespace
}  // namespace thalweg::model
