// Files that cannot be run are refused, naming the key or the tensor.

#include <functional>
#include <nlohmann/json.hpp>

#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "model/support.h"

namespace thalweg::model {
namespace {

TinySpec small_spec() {
  TinySpec spec;
  spec.interval = 2;
  spec.layers = 2;
  return spec;
}

// Loads the folder with its configuration changed.
void expect_config_error(const std::function<void(nlohmann::json&)>& change,
                         std::initializer_list<std::string_view> parts, const TinySpec& spec = small_spec()) {
  const TempFolder folder;
  const TinyModel tiny(spec);
  tiny.write_hugging_face(folder / "hf");
  nlohmann::json config = nlohmann::json::parse(tiny.config_json());
  change(config);
  write_file(folder / "hf/config.json", config.dump());
  expect_error([&] { Model::load(folder / "hf", precise()); }, parts);
}

TEST(BadConfig, OfAFolder) {
  using Json = nlohmann::json;
  const auto text = [](const char* key, const Json& value) {
    return [=](Json& config) { config["text_config"][key] = value; };
  };
  const auto erase = [](const char* key) { return [=](Json& config) { config["text_config"].erase(key); }; };
  expect_config_error([](Json& config) { config["model_type"] = "llama"; }, {"model_type", "llama"});
  expect_config_error(erase("hidden_size"), {"hidden_size"});
  expect_config_error(text("hidden_size", 0), {"hidden_size"});
  expect_config_error(text("hidden_size", -64), {"hidden_size", "-64"});
  expect_config_error(text("hidden_size", "64"), {"hidden_size"});
  expect_config_error(text("hidden_size", 128), {"embed_tokens", "[101,128]"});
  expect_config_error(text("vocab_size", 100), {"embed_tokens", "[100,64]"});
  expect_config_error(text("num_hidden_layers", 3), {"layers.2.", "none of that name"});
  expect_config_error(text("num_hidden_layers", 1 << 30), {"num_hidden_layers"});
  expect_config_error(text("num_key_value_heads", 3), {"num_attention_heads", "multiple of the 3"});
  expect_config_error(text("linear_num_key_heads", 3), {"linear_num_value_heads", "multiple of the 3"});
  expect_config_error(text("linear_key_head_dim", 33), {"linear_key_head_dim", "33"});
  expect_config_error(text("linear_conv_kernel_dim", 9), {"linear_conv_kernel_dim"});
  expect_config_error(text("num_experts_per_tok", 7), {"num_experts_per_tok", "at most 6"});
  expect_config_error(text("num_experts", 5), {"mlp.gate.weight", "[5,64]"});
  expect_config_error(text("hidden_act", "gelu"), {"hidden_act", "gelu"});
  expect_config_error(text("attention_bias", true), {"attention_bias"});
  expect_config_error(text("layer_types", Json::array({"full_attention"})), {"layer_types", "2 layers"});
  expect_config_error(text("layer_types", Json::array({"linear_attention", "sliding"})), {"layer_types", "sliding"});
  expect_config_error(text("eos_token_id", 101), {"eos_token_id", "101"});
  expect_config_error([](Json& config) { config["text_config"]["rope_parameters"].erase("partial_rotary_factor"); },
                      {"partial_rotary_factor"});
  expect_config_error([](Json& config) { config["text_config"]["rope_parameters"]["partial_rotary_factor"] = 1.5; },
                      {"partial_rotary_factor", "1.5"});
  expect_config_error([](Json& config) { config["text_config"]["rope_parameters"]["rope_type"] = "llama3"; },
                      {"rope_type", "llama3"});
  expect_config_error([](Json& config) { config["text_config"] = 3; }, {"text_config"});
}

// Qwen3-Next's keys of dense layers; transformers reads them for no other architecture.
TEST(BadConfig, DenseLayersAreThoseOfQwen3Next) {
  TinySpec spec = small_spec();
  spec.architecture = "qwen3next";
  expect_config_error([](nlohmann::json& c) { c["mlp_only_layers"] = {1}; }, {"layers.1.mlp.gate_proj.weight"}, spec);
  expect_config_error([](nlohmann::json& c) { c["decoder_sparse_step"] = 2; }, {"layers.0.mlp.gate_proj.weight"}, spec);
  expect_config_error([](nlohmann::json& c) { c["decoder_sparse_step"] = 0; }, {"decoder_sparse_step", "0"}, spec);
  const TempFolder folder;
  const TinyModel tiny(small_spec());
  tiny.write_hugging_face(folder / "hf");
  const std::vector<std::int32_t> tokens = random_tokens(12, tiny.spec().vocabulary, 4);
  const auto logits = [&] {
    Model model = Model::load(folder / "hf", precise());
    Sequence sequence = model.start();
    return logits_of_each(model, sequence, tokens);
  };
  const Logits plain = logits();
  nlohmann::json config = nlohmann::json::parse(tiny.config_json());
  config["text_config"]["mlp_only_layers"] = {0, 1};
  config["text_config"]["decoder_sparse_step"] = 2;
  write_file(folder / "hf/config.json", config.dump());
  EXPECT_EQ(logits(), plain);
}

// Transformers saves empty projections, and the gate that multiplies nothing.
TEST(SharedExpert, OfSizeZeroIsNone) {
  for (const std::string architecture : {"qwen3next", "qwen35moe"}) {
    SCOPED_TRACE(architecture);
    TinySpec spec = small_spec();
    spec.architecture = architecture;
    spec.shared_hidden = 0;
    const TempFolder folder;
    TinyModel tiny(spec);
    tiny.write_hugging_face(folder / "hf");
    const std::vector<std::int32_t> tokens = random_tokens(20, spec.vocabulary, 4);
    Model model = Model::load(folder / "hf", precise());
    EXPECT_EQ(model.info().shared_hidden, 0);
    Sequence sequence = model.start();
    EXPECT_LT(difference(logits_of_each(model, sequence, tokens), tiny.logits(tokens)), 2e-5);
    // Projections that hold something are not read over.
    const std::string prefix = architecture == "qwen3next" ? "model." : "model.language_model.";
    const std::string up = prefix + "layers.0.mlp.shared_expert.up_proj.weight";
    tiny.tensors()[up] = {{1, 64}, std::vector<float>(64, 1.0F)};
    tiny.write_hugging_face(folder / "bad");
    expect_error([&] { Model::load(folder / "bad", precise()); }, {up, "no such layer"});
  }
}

TEST(BadConfig, LayerTypesAreBelieved) {
  // The reverse of the interval: the tensors of those layers are missing.
  expect_config_error(
      [](nlohmann::json& config) {
        config["text_config"]["layer_types"] = {"full_attention", "linear_attention"};
      },
      {"layers.0.self_attn.q_proj.weight"});
}

void expect_tensor_error(const std::function<void(std::map<std::string, TinyTensor>&)>& change,
                         std::initializer_list<std::string_view> parts, bool gguf = false) {
  const TempFolder folder;
  TinyModel tiny(small_spec());
  change(tiny.tensors());
  const std::string path = folder / (gguf ? "model.gguf" : "hf");
  gguf ? tiny.write_gguf(path) : tiny.write_hugging_face(path);
  expect_error([&] { Model::load(path, precise()); }, parts);
}

TEST(BadTensors, AreNamed) {
  using Tensors = std::map<std::string, TinyTensor>;
  const std::string layer = "model.language_model.layers.0.";
  expect_tensor_error([&](Tensors& t) { t.erase(layer + "linear_attn.out_proj.weight"); },
                      {"layers.0.linear_attn.out_proj.weight", "none of that name"});
  expect_tensor_error([&](Tensors& t) { t.erase("lm_head.weight"); }, {"lm_head.weight"});
  expect_tensor_error(
      [&](Tensors& t) {
        t[layer + "linear_attn.conv1d.weight"].shape = {768, 1, 2};
      },
      {"conv1d.weight", "[384,4]"});
  expect_tensor_error(
      [&](Tensors& t) {
        t[layer + "linear_attn.in_proj_z.weight"].shape = {64, 256};
      },
      {"in_proj_z.weight", "[256,64]"});
  expect_tensor_error(
      [&](Tensors& t) {
        t[layer + "self_attn.q_proj.bias"] = {{1}, {1.0F}};
      },
      {"layers.0.self_attn.q_proj.bias", "no such layer"});
  for (bool gguf : {false, true}) {
    expect_tensor_error([&](Tensors& t) { t[layer + "input_layernorm.weight"].values[3] = NAN; },
                        {gguf ? "blk.0.attn_norm.weight" : "layers.0.input_layernorm.weight", "index 3"}, gguf);
    expect_tensor_error([&](Tensors& t) { t[layer + "linear_attn.A_log"].values[1] = INFINITY; },
                        {gguf ? "blk.0.ssm_a" : "layers.0.linear_attn.A_log", "inf"}, gguf);
    expect_tensor_error([&](Tensors& t) { t[layer + "linear_attn.dt_bias"].values[0] = -INFINITY; },
                        {gguf ? "blk.0.ssm_dt.bias" : "layers.0.linear_attn.dt_bias", "inf"}, gguf);
  }
}

// A GGUF file with its metadata changed.
void expect_metadata_error(const std::function<void(io::GgufMetadata&)>& change,
                           std::initializer_list<std::string_view> parts) {
  const TempFolder folder;
  TinyModel(small_spec()).write_gguf(folder / "good.gguf");
  const io::GgufFile good(folder / "good.gguf");
  io::GgufMetadata metadata = good.metadata();
  change(metadata);
  io::GgufWriter writer(folder / "bad.gguf", metadata);
  for (const io::GgufTensor& tensor : good.tensors()) writer.declare(tensor.name, *tensor.type.dtype, tensor.shape);
  for (const io::GgufTensor& tensor : good.tensors()) {
    writer.write(tensor.name, good.tensor(tensor.name).data, static_cast<std::size_t>(tensor.bytes));
  }
  writer.finish();
  expect_error([&] { Model::load(folder / "bad.gguf", precise()); }, parts);
}

TEST(BadConfig, OfAGgufFile) {
  const auto set = [](const char* key, std::int64_t value) {
    return [=](io::GgufMetadata& m) { m.set(std::string("qwen35moe.") + key, static_cast<std::int32_t>(value)); };
  };
  const auto erase = [](const char* key) {
    return [=](io::GgufMetadata& m) { m.erase(std::string("qwen35moe.") + key); };
  };
  expect_metadata_error([](io::GgufMetadata& m) { m.set("general.architecture", std::string("llama")); },
                        {"general.architecture", "llama"});
  expect_metadata_error(erase("embedding_length"), {"qwen35moe.embedding_length"});
  expect_metadata_error(set("embedding_length", 128), {"token_embd.weight", "[101,128]"});
  expect_metadata_error(set("block_count", 1), {"qwen35moe.nextn_predict_layers"});
  expect_metadata_error(set("block_count", 2), {"blk.2.", "one more layer"});
  expect_metadata_error(set("block_count", 2'000'000'000), {"block_count"});
  // Without the number of draft layers the last block would be a layer of the trunk.
  expect_metadata_error(erase("nextn_predict_layers"), {"blk.2."});
  expect_metadata_error(set("ssm.time_step_rank", 3), {"ssm.inner_size", "multiple of ssm.time_step_rank = 3"});
  expect_metadata_error(set("ssm.group_count", 3), {"ssm.time_step_rank"});
  expect_metadata_error(set("ssm.state_size", 0), {"ssm.state_size"});
  expect_metadata_error(set("attention.value_length", 32), {"attention.value_length"});
  expect_metadata_error(set("rope.dimension_count", 65), {"rope.dimension_count"});
  expect_metadata_error(set("expert_used_count", 7), {"expert_used_count", "at most 6"});
  expect_metadata_error(set("full_attention_interval", 0), {"full_attention_interval"});
  expect_metadata_error([](io::GgufMetadata& m) { m.set("qwen35moe.expert_weights_scale", 2.5F); },
                        {"expert_weights_scale", "2.5"});
  expect_metadata_error(
      [](io::GgufMetadata& m) {
        m.set("qwen35moe.attention.recurrent_layers", io::GgufArray{std::vector<bool>{true, false, true, true}});
      },
      {"attention.recurrent_layers"});
  expect_metadata_error(
      [](io::GgufMetadata& m) {
        m.set("qwen35moe.attention.recurrent_layers", io::GgufArray{std::vector<bool>{false, true}});
      },
      {"blk.0.attn_qkv.weight"});
}

TEST(BadOptions, AreNamed) {
  const TempFolder folder;
  TinyModel(small_spec()).write_gguf(folder / "model.gguf");
  const auto refused = [&](auto change, std::string_view name) {
    ModelOptions options;
    change(options);
    expect_error([&] { Model::load(folder / "model.gguf", options); }, {name});
  };
  refused([](ModelOptions& o) { o.threads = -1; }, "threads");
  refused([](ModelOptions& o) { o.context = -1; }, "context");
  refused([](ModelOptions& o) { o.sequences = 0; }, "sequences");
  refused([](ModelOptions& o) { o.prefill_chunk = -1; }, "prefill_chunk");
  refused([](ModelOptions& o) { o.kv_dtype = DType::kQ4_0; }, "kv_dtype");
  expect_error([&] { Model::load(folder / "none.gguf"); }, {"none.gguf"});
  expect_error([&] { Model::load(folder / ""); }, {"config.json"});
}

}  // namespace
}  // namespace thalweg::model
