#include <algorithm>
#include <charconv>

#include "decode/layers.h"
#include "decode/model_impl.h"
#include "io/printable.h"

namespace thalweg::model {
namespace {

std::string chosen_kernel(const Explanation& explanation) {
  if (explanation.chosen < 0) return "none";
  return explanation.kernels[static_cast<std::size_t>(explanation.chosen)].kernel;
}

// The number after "blk." or "layers." in a tensor's name; the name belongs to a layer of the trunk.
std::size_t layer_number(std::string_view name) {
  for (std::string_view prefix : {std::string_view("blk."), std::string_view("layers.")}) {
    const std::size_t place = name.find(prefix);
    if (place == std::string_view::npos) continue;
    std::size_t number = 0;
    const char* begin = name.data() + place + prefix.size();
    std::from_chars(begin, name.data() + name.size(), number);
    return number;
  }
  return 0;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Part of what moe_ffn takes, rather than a matrix of its own.
bool of_experts(std::string_view name) {
  return contains(name, "_exps.") || contains(name, "_shexp.") || contains(name, "ffn_gate_inp.") ||
         contains(name, ".experts.") || contains(name, ".shared_expert.") || contains(name, ".mlp.gate.");
}

class Kernels {
 public:
  explicit Kernels(const Model::Impl& model)
      : config_(model.config),
        weights_(model.weights),
        stream_(model.decoder->stream()),
        precision_(model.decoder->precision()),
        chunk_(model.options.prefill_chunk) {}

  void fill(TensorInfo& info, const ConstTensor& tensor) const {
    if (of_experts(info.name)) {
      info.operation = MoeFfnArgs::kName;
      const MoeWeights& experts = weights_.layers[layer_number(info.name)].moe;
      info.decode_kernel = experts_kernel(experts, 1);
      info.prefill_kernel = experts_kernel(experts, chunk_);
    } else if (tensor.data == weights_.embedding.data && !config_.tied_head) {
      info.operation = EmbeddingArgs::kName;
      info.decode_kernel = embedding_kernel(tensor, 1);
      info.prefill_kernel = embedding_kernel(tensor, chunk_);
    } else {
      info.operation = LinearArgs::kName;
      info.decode_kernel = linear_kernel(tensor, 1);
      info.prefill_kernel = linear_kernel(tensor, chunk_);
    }
  }

 private:
  static constexpr void* kNoData = nullptr;

  std::string linear_kernel(const ConstTensor& weight, std::int64_t tokens) const {
    LinearArgs args;
    args.x = Tensor(kNoData, DType::kF32, {tokens, weight.dim(1)}, kCpu);
    args.weight = weight;
    args.y = Tensor(kNoData, DType::kF32, {tokens, weight.dim(0)}, kCpu);
    args.precision = precision_;
    return chosen_kernel(explain(args, stream_));
  }

  std::string embedding_kernel(const ConstTensor& table, std::int64_t tokens) const {
    EmbeddingArgs args;
    args.ids = ConstTensor(kNoData, DType::kI32, {tokens}, kCpu);
    args.table = table;
    args.y = Tensor(kNoData, DType::kF32, {tokens, table.dim(1)}, kCpu);
    return chosen_kernel(explain(args, stream_));
  }

  std::string experts_kernel(const MoeWeights& experts, std::int64_t tokens) const {
    MoeFfnArgs args = expert_args(config_, experts, precision_);
    args.x = Tensor(kNoData, DType::kF32, {tokens, config_.hidden}, kCpu);
    args.y = Tensor(kNoData, DType::kF32, {tokens, config_.hidden}, kCpu);
    return chosen_kernel(explain(args, stream_));
  }

  const ModelConfig& config_;
  const Weights& weights_;
  Stream stream_;
  MatmulPrecision precision_;
  std::int64_t chunk_;
};

std::string type_name(const io::GgufTensor& tensor) { return tensor.type.name; }
std::string type_name(const io::SafetensorsTensor& tensor) { return tensor.type; }

template <class FileTensor>
void describe_tensors(const Model::Impl& model, const std::vector<FileTensor>& tensors, ModelInfo& info) {
  const Kernels kernels(model);
  for (const FileTensor& tensor : tensors) {
    TensorInfo entry;
    entry.name = io::printable(tensor.name);
    entry.type = type_name(tensor);
    entry.shape = tensor.shape;
    entry.bytes = tensor.bytes;
    const auto use = model.weights.used.find(tensor.name);
    entry.used = use != model.weights.used.end();
    if (entry.used) {
      ConstTensor view = model.source().tensor(tensor.name);
      // Of a matrix of one row, writers may leave a vector.
      if (view.rank == 1) view = {view.data, view.dtype, {1, view.size()}, view.device};
      if (use->second == TensorUse::kMatrix) kernels.fill(entry, view);
      info.parameters += static_cast<std::uint64_t>(view.size());
      info.weight_bytes += tensor.bytes;
      // A row of the table is next to nothing; of the experts, those that are used are read.
      const bool table = view.data == model.weights.embedding.data && !model.config.tied_head;
      const bool routed = contains(tensor.name, "_exps.") || contains(tensor.name, ".experts.");
      const auto used = static_cast<std::uint64_t>(model.config.experts_used);
      const auto experts = static_cast<std::uint64_t>(std::max(1, model.config.experts));
      if (!table) info.decode_bytes += routed ? tensor.bytes / experts * used : tensor.bytes;
    }
    info.tensors.push_back(std::move(entry));
  }
}

}  // namespace

ModelInfo describe(const Model::Impl& model, const std::string& path) {
  const ModelConfig& config = model.config;
  ModelInfo info;
  info.path = path;
  info.format = model.gguf != nullptr ? "GGUF" : "safetensors";
  info.architecture = config.architecture;
  info.name = config.name;
  info.layers = config.layers;
  info.mtp_layers = config.mtp_layers;
  info.hidden = config.hidden;
  info.vocabulary = config.vocabulary;
  info.context = config.context;
  info.attention_heads = config.heads;
  info.attention_kv_heads = config.kv_heads;
  info.head_dim = config.head_dim;
  info.rotary_dim = config.rotary_dim;
  info.rope_theta = static_cast<double>(config.rope_theta);
  info.norm_eps = static_cast<double>(config.norm_eps);
  info.key_heads = config.key_heads;
  info.value_heads = config.value_heads;
  info.key_dim = config.key_dim;
  info.value_dim = config.value_dim;
  info.conv_width = config.conv_width;
  info.head_map = config.head_map == HeadMap::kGrouped ? "grouped" : "tiled";
  info.experts = config.experts;
  info.experts_used = config.experts_used;
  info.expert_hidden = config.expert_hidden;
  info.shared_hidden = config.shared_hidden;
  info.dense_hidden = config.dense_hidden;
  info.tied_head = config.tied_head;
  info.has_tokenizer = model.tokenizer.has_value();
  info.end_tokens = config.end_tokens;
  info.copied_bytes = model.weights.owned.bytes();
  info.state_bytes = model.pool->fixed_bytes();
  info.cache_token_bytes = model.pool->token_bytes();
  if (model.gguf != nullptr) {
    describe_tensors(model, model.gguf->tensors(), info);
  } else {
    describe_tensors(model, model.safetensors->tensors(), info);
  }
  return info;
}

}  // namespace thalweg::model
