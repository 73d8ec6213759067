#include "convert/convert.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "checkpoint/tokenizer.h"
#include "checkpoint/weights.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "thalweg/error.h"

namespace thalweg::convert {
namespace {

namespace fs = std::filesystem;

std::string to_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::int64_t extent : shape) text += (text.size() > 1 ? "," : "") + std::to_string(extent);
  return text + "]";
}

std::vector<std::int64_t> squeezed(const ConstTensor& tensor) {
  std::vector<std::int64_t> shape;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.dim(i) != 1) shape.push_back(tensor.dim(i));
  }
  return shape;
}

class SourceLookup final : public TensorLookup {
 public:
  SourceLookup(const io::TensorSource& source, std::string path) : source_(source), path_(std::move(path)) {}

  bool has(const std::string& name) const override { return source_.has(name); }

  ConstTensor find(const std::string& name, const std::vector<std::int64_t>& shape) const override {
    const ConstTensor tensor = source_.tensor(name);
    std::vector<std::int64_t> wanted = shape;
    std::erase(wanted, 1);
    const std::string subject = "tensor " + name;
    if (squeezed(tensor) != wanted) throw Error(path_, subject, "shape " + to_text(shape), to_string(tensor));
    if (!is_float(tensor.dtype)) throw Error(path_, subject, "F32, F16 or BF16", dtype_name(tensor.dtype));
    return tensor;
  }

 private:
  const io::TensorSource& source_;
  std::string path_;
};

// Without the MTP layer, so that the trunk's types do not depend on it.
int count_layers(const std::vector<TensorPlan>& plans) {
  std::set<int> layers;
  std::set<int> mtp;
  for (const TensorPlan& plan : plans) {
    int layer = -1;
    if (plan.name.starts_with("blk.")) {
      std::from_chars(plan.name.data() + 4, plan.name.data() + plan.name.size(), layer);
    }
    if (layer >= 0) layers.insert(layer);
    if (plan.name.find(".nextn.") != std::string::npos) mtp.insert(layer);
  }
  for (const int layer : mtp) layers.erase(layer);
  return layers.empty() ? 0 : *layers.rbegin() + 1;
}

// A new file that the runner refuses would be found out only after it was written.
void refuse_what_would_not_load(ModelConfig config, const io::TensorSource& source,
                                const std::optional<text::Tokenizer>& tokenizer) {
  if (tokenizer) checkpoint::take_end_tokens(config, *tokenizer);
  checkpoint::check_weights(config, source);
}

Converted finish(std::vector<TensorPlan>& plans, const io::TensorSource& source, const io::GgufMetadata& metadata,
                 const std::string& in, const std::string& out, const TypeMix& mix, const ConvertOptions& options) {
  Converted result;
  result.notes = choose_types(plans, mix);
  result.tensors = plans.size();
  for (const TensorPlan& plan : plans) {
    std::int64_t count = 1;
    for (std::int64_t extent : plan.shape) count *= extent;
    result.bytes += static_cast<std::uint64_t>(bytes_of(plan.dtype, count));
  }
  io::GgufWriter writer(out, metadata, options.progress);
  write_planned(plans, source, in, writer, Stream::cpu(options.threads));
  return result;
}

std::vector<std::int64_t> rope_sections(const io::JsonObject& top, int rotary_dim) {
  const io::JsonObject text = top.is_object("text_config") ? top.object("text_config") : top;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!text.is_object(key) || !text.object(key).is_array("mrope_section")) continue;
    std::vector<std::int64_t> sections = text.object(key).integers("mrope_section");
    if (sections.size() > 4) {
      throw Error(top.path(), key + std::string(".mrope_section"), "at most 4 numbers",
                  std::to_string(sections.size()));
    }
    sections.resize(4, 0);
    return sections;
  }
  return default_rope_sections(rotary_dim);
}

Converted from_hugging_face(const std::string& in, const std::string& out, const TypeMix& mix,
                            const ConvertOptions& options) {
  const io::JsonObject json = io::JsonObject::read((fs::path(in) / "config.json").string());
  const io::SafetensorsFile source(in);
  ModelConfig config = checkpoint::read_config(json, source);
  if (config.name.empty()) config.name = fs::weakly_canonical(in).filename().string();
  const std::string mtp = checkpoint::mtp_prefix(source);
  io::GgufMetadata metadata = gguf_metadata(config, rope_sections(json, config.rotary_dim), mix.file_type);
  const bool has_tokenizer = add_tokenizer(metadata, in, config);
  refuse_what_would_not_load(config, source, checkpoint::read_tokenizer(in));
  std::vector<TensorPlan> plans =
      plan_hugging_face(config, checkpoint::hugging_face_prefix(source), mtp, SourceLookup(source, in));
  Converted result = finish(plans, source, metadata, in, out, mix, options);
  result.architecture = config.architecture;
  result.source_bytes = source.bytes();
  if (!has_tokenizer) result.notes.emplace_back("there is no tokenizer.json: the new file takes token ids only");
  std::size_t unread = 0;  // of several MTP layers
  std::size_t vision = 0;
  for (const std::string& name : source.names()) {
    unread += !mtp.empty() && !config.has_mtp && name.starts_with(mtp) ? 1 : 0;
    vision += name.starts_with("model.visual.") ? 1 : 0;
  }
  const auto left_out = [&](std::size_t count, const char* what) {
    if (count > 0) result.notes.push_back(std::to_string(count) + " tensors of " + what + " are left out");
  };
  left_out(unread, "the multi-token prediction");
  left_out(vision, "the vision encoder");
  return result;
}

Converted from_gguf(const std::string& in, const std::string& out, const TypeMix& mix, const ConvertOptions& options) {
  const io::GgufFile source(in);
  io::GgufMetadata metadata = source.metadata();
  const ModelConfig config = checkpoint::read_config(metadata, source, in);
  refuse_what_would_not_load(config, source, checkpoint::read_tokenizer(metadata, in));
  metadata.set("general.file_type", static_cast<std::uint32_t>(mix.file_type));
  metadata.set("general.quantization_version", std::uint32_t{2});
  std::vector<TensorPlan> plans;
  std::set<std::string> packed;
  for (const io::GgufTensor& tensor : source.tensors()) {
    TensorPlan plan;
    plan.name = plan.source = tensor.name;
    plan.shape = tensor.shape;
    plan.sources.push_back(source.tensor(tensor.name));
    const DType dtype = plan.sources.front().dtype;
    if (dtype == DType::kI32) throw Error(in, "tensor " + tensor.name, "weights", "I32");
    if (is_block_format(dtype)) packed.insert(tensor.type.name);
    plans.push_back(std::move(plan));
  }
  Converted result = finish(plans, source, metadata, in, out, mix, options);
  result.architecture = config.architecture;
  result.source_bytes = source.bytes();
  if (!packed.empty()) {
    std::string types;
    for (const std::string& type : packed) types += (types.empty() ? "" : ", ") + type;
    result.notes.push_back("the weights were packed already (" + types + "): the new file is no better than that");
  }
  return result;
}

}  // namespace

std::vector<std::string> choose_types(std::vector<TensorPlan>& plans, const TypeMix& mix) {
  const int layers = count_layers(plans);
  const bool tied =
      std::none_of(plans.begin(), plans.end(), [](const TensorPlan& plan) { return plan.name == "output.weight"; });
  std::map<std::string, std::size_t> unfit;  // by note
  for (TensorPlan& plan : plans) {
    const ChosenType chosen = choose_type(mix, plan.name, plan.shape, layers, tied);
    plan.dtype = chosen.dtype;
    if (chosen.dtype == chosen.wanted) continue;
    std::string name = plan.name;
    if (name.starts_with("blk.")) name.erase(0, name.find('.', 4) + 1);
    ++unfit[name + ": rows of " + std::to_string(plan.shape.back()) + " do not fill blocks of " +
            std::string(dtype_name(chosen.wanted)) + " (" + std::to_string(dtype_info(chosen.wanted).block_size) +
            "), stored as " + std::string(dtype_name(chosen.dtype))];
  }
  std::vector<std::string> notes;
  for (const auto& [note, count] : unfit) {
    notes.push_back(note + (count > 1 ? " (" + std::to_string(count) + " tensors)" : ""));
  }
  return notes;
}

Converted convert_model(const std::string& in, const std::string& out, const TypeMix& mix,
                        const ConvertOptions& options) {
  std::error_code missing;
  if (fs::equivalent(in, out, missing) && !missing) throw Error(out, "OUT", "another file than the input", "the same");
  if (fs::is_directory(out)) throw Error(out, "OUT", "a file name", "a directory");
  return fs::is_directory(in) ? from_hugging_face(in, out, mix, options) : from_gguf(in, out, mix, options);
}

}  // namespace thalweg::convert
