#include <algorithm>

#include "decode/layers.h"
#include "decode/model_impl.h"
#include "io/printable.h"

namespace thalweg::decode {
namespace {

using checkpoint::TensorRole;
using checkpoint::TensorUse;

std::string chosen_kernel(const Explanation& explanation) {
  if (explanation.chosen < 0) return "none";
  return explanation.kernels[static_cast<std::size_t>(explanation.chosen)].kernel;
}

// Names the kernels that run a model's matrices.
class Kernels {
 public:
  explicit Kernels(const Model::Impl& model)
      : config_(model.config),
        host_(model.weights),
        weights_(model.weights_there()),
        runtime_(*model.runtime),
        chunk_(model.decoder->chunk()) {}

  void fill(TensorInfo& info, const ConstTensor& tensor, const TensorUse& use) const {
    if (use.role == TensorRole::kMoe || use.role == TensorRole::kExpert) {
      info.operation = MoeFfnArgs::kName;
      const MoeWeights& experts = use.mtp ? weights_.mtp.layer.moe : weights_.layers[use.layer].moe;
      info.decode_kernel = experts_kernel(experts, 1);
      info.prefill_kernel = experts_kernel(experts, chunk_);
    } else if ((tensor.data == host_.embedding.data && !config_.tied_head) ||
               (use.mtp && tensor.data == host_.mtp.embedding.data)) {
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
  std::string linear_kernel(const ConstTensor& weight, std::int64_t tokens) const {
    LinearArgs args;
    args.x = activations(tokens, weight.dim(1));
    args.weight = there(weight);
    args.y = activations(tokens, weight.dim(0));
    args.precision = runtime_.precision();
    return chosen_kernel(explain(args, stream(tokens)));
  }

  std::string embedding_kernel(const ConstTensor& table, std::int64_t tokens) const {
    EmbeddingArgs args;
    args.ids = ConstTensor(nullptr, DType::kI32, {tokens}, runtime_.device());
    args.table = there(table);
    args.y = Tensor(nullptr, DType::kF32, {tokens, table.dim(1)}, runtime_.device());
    return chosen_kernel(explain(args, stream(tokens)));
  }

  std::string experts_kernel(const MoeWeights& experts, std::int64_t tokens) const {
    MoeFfnArgs args = expert_args(config_, experts, runtime_.precision());
    args.x = activations(tokens, config_.hidden);
    args.y = activations(tokens, config_.hidden);
    return chosen_kernel(explain(args, stream(tokens)));
  }

  Stream stream(std::int64_t tokens) const {  // as Step::run
    return runtime_.hinted(runtime_.stream(), tokens == 1 ? RowHint::kFew : RowHint::kMany);
  }

  Tensor activations(std::int64_t tokens, std::int64_t columns) const {
    return {nullptr, runtime_.activations(), {tokens, columns}, runtime_.device()};
  }

  // A tensor of the file where the model runs.
  ConstTensor there(ConstTensor tensor) const {
    tensor.device = runtime_.device();
    return tensor;
  }

  const ModelConfig& config_;
  const checkpoint::Weights& host_;
  const checkpoint::Weights& weights_;
  const Runtime& runtime_;
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
    const auto found = model.weights.used.find(tensor.name);
    entry.used = found != model.weights.used.end();
    if (entry.used) {
      const TensorUse& use = found->second;
      ConstTensor view = model.source().tensor(tensor.name);
      // Writers may store a matrix of one row as a vector.
      if (view.rank == 1) view = reshape(view, {1, view.size()});
      entry.mtp = use.mtp;
      // Neither ranks nor, without drafts of it, devices have the MTP layer.
      const bool here = model.group == nullptr && (model.runtime->on_host() || model.draft_by_mtp);
      const bool runs = !use.mtp || here;
      if (use.role != TensorRole::kSmall && runs) kernels.fill(entry, view, use);
      if (use.mtp) {
        info.mtp_bytes += tensor.bytes;
        info.tensors.push_back(std::move(entry));
        continue;
      }
      info.parameters += static_cast<std::uint64_t>(view.size());
      info.weight_bytes += tensor.bytes;
      // A decode step reads one row of the embedding table, and of the routed experts those that are chosen.
      const bool table = view.data == model.weights.embedding.data && !model.config.tied_head;
      const auto chosen = static_cast<std::uint64_t>(model.config.experts_used);
      const auto experts = static_cast<std::uint64_t>(std::max(1, model.config.experts));
      if (!table) info.decode_bytes += use.role == TensorRole::kExpert ? tensor.bytes / experts * chosen : tensor.bytes;
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
  info.mtp_layers = config.has_mtp ? 1 : config.mtp_layers > 1 ? config.mtp_layers : 0;
  if (config.has_mtp) info.mtp_token_bytes = model.pool->mtp_token_bytes();
  info.hidden = config.hidden;
  info.vocabulary = config.vocabulary;
  info.context = config.context;
  info.attention_heads = config.heads;
  info.attention_kv_heads = config.kv_heads;
  info.head_dim = config.head_dim;
  info.rotary_dim = config.rotary_dim;
  info.rope_theta = static_cast<double>(config.rope_theta);
  info.rope_scaling = checkpoint::rope_scaling_name(config.rope_scaling.type);
  info.rope_factor = config.rope_scaling.factor;
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
  info.has_chat_template = !model.chat_template.empty();
  info.end_tokens = config.end_tokens;
  info.copied_bytes = model.weights.owned.bytes();
  info.state_bytes = model.pool->fixed_bytes() + model.pool->draft_bytes();
  info.state_dtype = model.options.state_dtype;
  info.cache_token_bytes = model.pool->token_bytes();
  info.kv_dtype = model.pool->cache_dtype();
  info.device = model.runtime->device_name();
  if (model.group != nullptr) info.device += ", " + std::to_string(model.group->count()) + " ranks";
  info.device_reason = model.device_reason;
  info.device_bytes = model.device_bytes;
  if (model.gguf != nullptr) {
    describe_tensors(model, model.gguf->tensors(), info);
  } else {
    describe_tensors(model, model.safetensors->tensors(), info);
  }
  return info;
}

}  // namespace thalweg::decode
