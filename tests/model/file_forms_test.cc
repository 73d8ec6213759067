// GGUF files as other programs write them: the same model in other layouts and with other keys.

#include <functional>

#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "model/support.h"

namespace thalweg::model {
namespace {

using Metadata = io::GgufMetadata;

// Changes of the metadata and of the names of tensors.
struct Form {
  std::function<void(Metadata&)> metadata = [](Metadata&) {};
  std::function<std::string(const std::string&)> name = [](const std::string& same) { return same; };
  std::vector<std::string> more;  // tensors that are not the text model's
};

void write(const io::GgufFile& file, const std::string& path, const Form& form) {
  Metadata metadata = file.metadata();
  form.metadata(metadata);
  io::GgufWriter writer(path, metadata);
  const std::vector<float> noise(64, 0.5F);
  for (const io::GgufTensor& tensor : file.tensors()) {
    writer.declare(form.name(tensor.name), *tensor.type.dtype, tensor.shape);
  }
  for (const std::string& name : form.more) writer.declare(name, DType::kF32, {1, 2, 32});
  for (const io::GgufTensor& tensor : file.tensors()) {
    writer.write(form.name(tensor.name), file.tensor(tensor.name).data, static_cast<std::size_t>(tensor.bytes));
  }
  for (const std::string& name : form.more) writer.write(name, noise.data(), noise.size() * sizeof(float));
  writer.finish();
}

Logits logits_of(const std::string& path) {
  Model model = Model::load(path, precise());
  Sequence sequence = model.start();
  return logits_of_each(model, sequence, random_tokens(20, model.info().vocabulary, 11));
}

void expect_same_model(const TinySpec& spec, const Form& form) {
  const TempFolder folder;
  TinyModel(spec).write_gguf(folder / "model.gguf");
  write(io::GgufFile(folder / "model.gguf"), folder / "form.gguf", form);
  EXPECT_EQ(logits_of(folder / "form.gguf"), logits_of(folder / "model.gguf"));
}

// Interval 2, so that the default of 4 would be wrong; the draft layer is the fifth.
TinySpec spec_of(const std::string& architecture) {
  TinySpec spec;
  spec.architecture = architecture;
  spec.interval = 2;
  if (architecture == "qwen35") spec.experts = 0;
  return spec;
}

template <class T>
io::GgufValue array(std::vector<T> values) {
  return io::GgufArray{std::move(values)};
}

TEST(FileForms, KeyHeadsOfEachLayer) {
  for (const std::string architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    Form form;
    form.metadata = [&](Metadata& m) {
      m.set(architecture + ".attention.head_count_kv", array<std::uint32_t>({0, 2, 0, 2, 2}));
      m.set(architecture + ".attention.head_count", array<std::int32_t>({4, 4, 4, 4, 4}));
      m.set(architecture + ".feed_forward_length", array<std::uint32_t>({96, 96, 96, 96, 96}));
      if (architecture != "qwen35") {
        m.set(architecture + ".expert_feed_forward_length", array<std::uint32_t>({32, 32, 32, 32, 32}));
      }
    };
    expect_same_model(spec_of(architecture), form);
  }
}

// llama.cpp always writes an interval of 4, and a list of the layers, which is right.
TEST(FileForms, RecurrentLayersInsteadOfAnInterval) {
  Form form;
  form.metadata = [](Metadata& m) {
    m.set("qwen35moe.full_attention_interval", std::uint32_t{4});
    m.set("qwen35moe.attention.recurrent_layers", array<bool>({true, false, true, false, false}));
  };
  expect_same_model(spec_of("qwen35moe"), form);
  form.metadata = [](Metadata& m) {
    m.erase("qwen35moe.full_attention_interval");
    m.set("qwen35moe.attention.recurrent_layers", array<std::int32_t>({1, 0, 1, 0}));
  };
  expect_same_model(spec_of("qwen35moe"), form);
}

TEST(FileForms, KeysThatAreNoneOfTheModelsBusiness) {
  Form form;
  form.metadata = [](Metadata& m) {
    m.set("general.tags", array<std::string>({"image-text-to-text"}));
    m.set("general.sampling.top_k", std::int32_t{20});
    m.set("general.sampling.temp", 1.0F);
    m.set("general.parameter_count", std::uint64_t{35951822704});
    m.set("general.base_model.count", std::uint32_t{1});
    m.set("quantize.imatrix.entries_count", std::int32_t{510});
    m.set("qwen35moe.rope.dimension_sections", array<std::int32_t>({11, 11, 10, 0}));
    m.set("qwen35moe.expert_weights_scale", 0.0F);
    m.set("qwen35moe.expert_weights_norm", true);
    m.set("split.count", std::uint16_t{0});  // of a split model that was merged
  };
  expect_same_model(spec_of("qwen35moe"), form);
}

TEST(FileForms, OfOllama) {
  TinySpec spec = spec_of("qwen35moe");
  spec.renormalize = false;
  Form form;
  form.metadata = [](Metadata& m) {
    m.set("qwen35moe.attention.head_count_kv", array<std::uint32_t>({0, 2, 0, 2, 2}));
    m.set("qwen35moe.rope.dimension_sections", array<std::int32_t>({11, 11, 10}));
    m.set("qwen35moe.rope.mrope_interleaved", true);
    m.set("qwen35moe.ssm.v_head_reordered", true);
    m.erase("qwen35moe.expert_weights_norm");
    m.set("qwen35moe.norm_top_k_prob", false);
    m.set("qwen35moe.vision.block_count", std::uint32_t{27});
  };
  form.name = [](const std::string& name) {
    return name.ends_with("ssm_dt.bias") ? name.substr(0, name.size() - 5) : name;
  };
  form.more = {"v.blk.0.attn_q.weight", "mtp.fc.weight"};
  expect_same_model(spec, form);

  // The other value describes another model.
  const TempFolder folder;
  TinyModel(spec).write_gguf(folder / "model.gguf");
  form.metadata = [](Metadata& m) { m.set("qwen35moe.ssm.v_head_reordered", false); };
  write(io::GgufFile(folder / "model.gguf"), folder / "form.gguf", form);
  EXPECT_GT(difference(logits_of(folder / "form.gguf"), logits_of(folder / "model.gguf")), 1e-2);
}

// llama.cpp's tools drop the dimension of one value head or of one expert.
TEST(FileForms, WithoutOuterDimensionsOfOne) {
  TinySpec spec = spec_of("qwen35moe");
  spec.key_heads = spec.value_heads = 1;
  spec.experts = spec.experts_used = 1;
  const TempFolder folder;
  TinyModel(spec).write_gguf(folder / "model.gguf");
  const io::GgufFile file(folder / "model.gguf");
  io::GgufWriter writer(folder / "form.gguf", file.metadata());
  int changed = 0;
  for (const io::GgufTensor& tensor : file.tensors()) {
    std::vector<std::int64_t> shape = tensor.shape;
    while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
    changed += shape != tensor.shape ? 1 : 0;
    writer.declare(tensor.name, *tensor.type.dtype, shape);
  }
  EXPECT_GE(changed, 10);
  for (const io::GgufTensor& tensor : file.tensors()) {
    writer.write(tensor.name, file.tensor(tensor.name).data, static_cast<std::size_t>(tensor.bytes));
  }
  writer.finish();
  EXPECT_EQ(logits_of(folder / "form.gguf"), logits_of(folder / "model.gguf"));
}

}  // namespace
}  // namespace thalweg::model
