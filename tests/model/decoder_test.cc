// The decoder against the models' mathematics in float64, from both kinds of files.

#include "cpu/tile_ops.h"
#include "model/support.h"
#include "thalweg/nn.h"

namespace thalweg::model {
namespace {

struct Case {
  const char* name;
  TinySpec spec;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  list.push_back({"moe", {}});
  TinySpec spec;
  spec.tied = true;
  spec.separate_experts = true;
  spec.key_heads = 2;
  spec.value_heads = 6;
  spec.kv_heads = 1;
  list.push_back({"moe_tied_ratio_3", spec});
  spec = {};
  spec.architecture = "qwen35";
  spec.experts = 0;
  spec.key_heads = 4;
  spec.key_dim = 128;
  spec.value_dim = 128;
  list.push_back({"dense_ratio_1", spec});
  spec.key_heads = 1;
  spec.key_dim = 64;
  spec.value_dim = 32;
  spec.head_dim = 128;
  spec.interval = 2;
  spec.conv_width = 3;
  spec.tied = true;
  list.push_back({"dense_tied_ratio_4", spec});
  spec = {};
  spec.architecture = "qwen3next";
  spec.value_heads = 6;
  spec.dense_layers = {1};
  list.push_back({"next", spec});
  spec.renormalize = false;
  spec.interleaved_in = true;
  spec.separate_experts = true;
  spec.kv_heads = 4;
  spec.mtp = false;
  list.push_back({"next_interleaved", spec});
  return list;
}

class DecoderTest : public testing::TestWithParam<Case> {};

// f32 against f64 through a few layers.
constexpr double kBound = 2e-5;

TEST_P(DecoderTest, GivesTheLogitsOfTheMathematics) {
  const TinyModel tiny(GetParam().spec);
  const std::vector<std::int32_t> tokens = random_tokens(90, GetParam().spec.vocabulary, 5);
  const auto expected = tiny.logits(tokens);
  const TempFolder folder;
  tiny.write_hugging_face(folder / "hf");
  tiny.write_hugging_face(folder / "bf16", DType::kBF16);
  tiny.write_gguf(folder / "model.gguf");
  Logits from_safetensors;
  for (const char* file : {"hf", "bf16", "model.gguf"}) {
    Model model = Model::load(folder / file, precise());
    Sequence sequence = model.start();
    const Logits prefilled = logits_of_each(model, sequence, tokens);
    const double error = difference(prefilled, expected);
    EXPECT_LT(error, kBound) << file << ", prefill";
    if (from_safetensors.empty()) from_safetensors = prefilled;
    EXPECT_LT(difference(prefilled, from_safetensors), 1e-5) << file << " beside safetensors";

    sequence.clear();
    double largest = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      model.step(sequence, tokens[t]);
      largest = std::max(largest, difference(copy(sequence.logits()), expected[t]));
    }
    EXPECT_LT(largest, kBound) << file << ", token by token";
  }
}

TEST_P(DecoderTest, SaysWhatTheFileHolds) {
  const TinySpec& spec = GetParam().spec;
  const TinyModel tiny(spec);
  const TempFolder folder;
  tiny.write_hugging_face(folder / "hf");
  tiny.write_gguf(folder / "model.gguf");
  for (const char* file : {"hf", "model.gguf"}) {
    const Model model = Model::load(folder / file, precise());
    const ModelInfo& info = model.info();
    EXPECT_EQ(info.architecture, spec.architecture);
    EXPECT_EQ(info.layers.size(), static_cast<std::size_t>(spec.layers));
    for (int i = 0; i < spec.layers; ++i) {
      EXPECT_EQ(info.layers[static_cast<std::size_t>(i)] == LayerKind::kAttention, spec.full_attention(i));
    }
    EXPECT_EQ(info.vocabulary, spec.vocabulary);
    EXPECT_EQ(info.tied_head, spec.tied);
    EXPECT_EQ(info.end_tokens, std::vector<std::int32_t>{0});
    const bool gguf = std::string_view(file) == "model.gguf";
    EXPECT_EQ(info.format, gguf ? "GGUF" : "safetensors");
    EXPECT_EQ(info.head_map, gguf && spec.architecture != "qwen3next" ? "tiled" : "grouped");
    std::uint64_t used_bytes = 0;
    std::uint64_t mtp_bytes = 0;
    for (const TensorInfo& tensor : info.tensors) {
      EXPECT_TRUE(tensor.used) << tensor.name;
      (tensor.mtp ? mtp_bytes : used_bytes) += tensor.bytes;
      EXPECT_NE(tensor.decode_kernel, "none") << tensor.name;
      EXPECT_EQ(tensor.operation.empty(), tensor.decode_kernel.empty()) << tensor.name;
    }
    EXPECT_EQ(info.mtp_layers, spec.mtp ? 1 : 0);
    EXPECT_EQ(mtp_bytes > 0, spec.mtp);
    EXPECT_EQ(info.mtp_bytes, mtp_bytes);
    EXPECT_EQ(info.weight_bytes, used_bytes);
    EXPECT_LE(info.decode_bytes, info.weight_bytes);
    EXPECT_GT(info.decode_bytes, 0U);
  }
}

// Weights in blocks, activations rounded: near the exact product with the same weights.
void expect_near_exact(const TinySpec& spec) {
  const TinyModel tiny(spec);
  const std::vector<std::int32_t> tokens = random_tokens(40, spec.vocabulary, 9);
  const TempFolder folder;
  tiny.write_gguf(folder / "model.gguf", DType::kQ8_0);
  Model exact = Model::load(folder / "model.gguf", precise());
  ModelOptions options = precise();
  options.exact = false;
  Model rounded = Model::load(folder / "model.gguf", options);
  Sequence a = exact.start();
  Sequence b = rounded.start();
  const Logits right = logits_of_each(exact, a, tokens);
  const Logits given = logits_of_each(rounded, b, tokens);
  double error = 0;
  double power = 0;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    for (std::size_t i = 0; i < right[t].size(); ++i) {
      error += std::pow(static_cast<double>(given[t][i]) - static_cast<double>(right[t][i]), 2);
      power += std::pow(static_cast<double>(right[t][i]), 2);
    }
  }
  EXPECT_LT(error / power, 2e-2);  // most of it is from another choice of expert
  EXPECT_GT(error, 0.0) << "nothing was rounded";
  EXPECT_LT(difference(right, tiny.logits(tokens)), 0.5);
}

TEST_P(DecoderTest, RunsQuantisedFiles) { expect_near_exact(GetParam().spec); }

// Where the machine has none, they are emulated.
TEST_P(DecoderTest, RunsQuantisedFilesOnMatrixUnits) {
  struct Emulation {
    Emulation() { cpu::emulate_tiles(cpu::amx_tile_ops() == nullptr); }
    ~Emulation() { cpu::emulate_tiles(false); }
  } emulation;
  expect_near_exact(GetParam().spec);
}

TEST_P(DecoderTest, ProfilesAStep) {
  const TinySpec& spec = GetParam().spec;
  const TinyModel tiny(spec);
  const TempFolder folder;
  tiny.write_gguf(folder / "model.gguf");
  Model model = Model::load(folder / "model.gguf", precise());
  for (const std::int64_t tokens : {1, 40}) {
    const std::vector<OperationTime> times = model.profile(tokens, tokens, 7);
    std::int64_t norms = 0;
    for (const OperationTime& time : times) {
      EXPECT_GT(time.calls, 0) << time.operation;
      EXPECT_GT(time.seconds, 0.0) << time.operation;
      EXPECT_FALSE(time.kernel.empty()) << time.operation;
      if (time.operation == RmsNormArgs::kName) norms += time.calls;
    }
    EXPECT_EQ(norms, 2 * spec.layers + 1);
  }
  EXPECT_THROW(model.profile(model.context() + 1, 1, 0), Error);
  // What it ran on is cleared.
  const std::vector<std::int32_t> tokens = random_tokens(20, spec.vocabulary, 5);
  Sequence sequence = model.start();
  EXPECT_LT(difference(logits_of_each(model, sequence, tokens), tiny.logits(tokens)), kBound);
}

INSTANTIATE_TEST_SUITE_P(Tiny, DecoderTest, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace thalweg::model
