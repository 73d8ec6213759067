#include "checkpoint/weights.h"

#include <algorithm>

#include "checkpoint/tensor_binder.h"
#include "io/printable.h"

namespace thalweg::checkpoint {
namespace {

// The number of the layer that a tensor belongs to; -1 if its name does not begin with `prefix` and a number.
std::int64_t layer_of(std::string_view name, std::string_view prefix) {
  if (name.substr(0, prefix.size()) != prefix) return -1;
  std::int64_t layer = -1;
  for (char c : name.substr(prefix.size())) {
    if (c < '0' || c > '9') return c == '.' ? layer : -1;
    layer = std::max<std::int64_t>(layer, 0) * 10 + (c - '0');
    if (layer > 1'000'000) return -1;
  }
  return -1;
}

// What a Hugging Face model keeps of a shared expert of size 0: empty projections, and a gate that multiplies nothing.
bool of_no_shared_expert(const ModelConfig& config, const io::TensorSource& source, const std::string& name) {
  if (config.naming != Naming::kHuggingFace || config.experts == 0 || config.shared_hidden != 0) return false;
  if (name.ends_with(".mlp.shared_expert_gate.weight")) return true;
  return name.find(".mlp.shared_expert.") != std::string::npos && source.tensor(name).size() == 0;
}

std::string layers_prefix(const ModelConfig& config, const io::TensorSource& source) {
  return config.naming == Naming::kGguf ? "blk." : hugging_face_prefix(source) + "layers.";
}

void refuse_more_layers(const ModelConfig& config, const io::TensorSource& source, const TensorBinder& binder) {
  const std::string prefix = layers_prefix(config, source);
  const auto trunk = static_cast<std::int64_t>(config.layers.size());
  for (const std::string& name : source.names()) {
    if (layer_of(name, prefix) < trunk + (config.naming == Naming::kGguf ? config.mtp_layers : 0)) continue;
    binder.fail(io::printable(name), "tensors of " + std::to_string(trunk) + " layers, as the configuration says",
                "one more layer");
  }
}

// Refuses tensors of the trunk that nothing reads: without a bias or a scale the model would give other text, silently.
void refuse_unread(const ModelConfig& config, const io::TensorSource& source, const Weights& weights,
                   const TensorBinder& binder) {
  const std::string prefix = layers_prefix(config, source);
  for (const std::string& name : source.names()) {
    if (weights.used.count(name) != 0) continue;
    const std::int64_t layer = layer_of(name, prefix);
    const bool in_trunk = layer >= 0 && layer < static_cast<std::int64_t>(config.layers.size());
    const bool recomputed = name.find("rotary_emb.inv_freq") != std::string::npos;
    const bool empty = in_trunk && of_no_shared_expert(config, source, name);
    if ((in_trunk && !recomputed && !empty) || name == "rope_freqs.weight") {
      binder.fail(io::printable(name), "a tensor of a " + config.architecture + " layer", "one that no such layer has");
    }
  }
}

}  // namespace

void* OwnedMemory::allocate(std::size_t bytes) {
  blocks_.push_back(std::make_unique<std::byte[]>(std::max<std::size_t>(bytes, 1)));
  bytes_ += bytes;
  return blocks_.back().get();
}

namespace {

Weights bind(const ModelConfig& config, const io::TensorSource& source, TensorBinder::Copies copies) {
  Weights weights;
  TensorBinder binder(config, source, weights, copies);
  weights.layers.resize(config.layers.size());
  refuse_more_layers(config, source, binder);
  if (config.naming == Naming::kGguf) {
    bind_gguf(binder, weights);
  } else {
    bind_hugging_face(binder, source, weights);
  }
  refuse_unread(config, source, weights, binder);
  const std::vector<float>& frequencies = config.rope_frequencies;
  if (!frequencies.empty()) {
    weights.rope_frequencies =
        ConstTensor(frequencies.data(), DType::kF32, {static_cast<std::int64_t>(frequencies.size())}, kCpu);
  }
  return weights;
}

}  // namespace

Weights bind_weights(const ModelConfig& config, const io::TensorSource& source) {
  return bind(config, source, TensorBinder::Copies::kMade);
}

void check_weights(const ModelConfig& config, const io::TensorSource& source) {
  bind(config, source, TensorBinder::Copies::kLeftOut);
}

}  // namespace thalweg::checkpoint
