#include "checkpoint/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/binder.h"
#include "core/float16.h"
#include "io/printable.h"

namespace thalweg::model {
namespace {

std::string shape_text(std::initializer_list<std::int64_t> shape) {
  std::string text = "[";
  for (std::int64_t extent : shape) text += (text.size() > 1 ? "," : "") + std::to_string(extent);
  return text + "]";
}

// Number of the trunk's layer that a tensor belongs to, -1 for none.
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

// A bias or a scale that nobody adds would give another model's text without a word.
void refuse_unread(const ModelConfig& config, const io::TensorSource& source, const Weights& weights,
                   const Binder& binder) {
  const bool gguf = config.naming == Naming::kGguf;
  const std::string prefix = gguf ? "blk." : hugging_face_prefix(source) + "layers.";
  for (const std::string& name : source.names()) {
    if (weights.used.count(name) != 0) continue;
    const std::int64_t layer = layer_of(name, prefix);
    const auto trunk = static_cast<std::int64_t>(config.layers.size());
    if (layer >= trunk + (gguf ? config.mtp_layers : 0)) {
      binder.fail(io::printable(name), "tensors of " + std::to_string(trunk) + " layers, as the configuration says",
                  "one more layer");
    }
    const bool in_trunk = layer >= 0 && layer < trunk;
    const bool harmless = name.find("rotary_emb.inv_freq") != std::string::npos;
    if ((in_trunk && !harmless) || name == "rope_freqs.weight") {
      binder.fail(io::printable(name), "a tensor of a " + config.architecture + " layer",
                  "one that has no place there");
    }
  }
}

}  // namespace

void* OwnedMemory::allocate(std::size_t bytes) {
  blocks_.push_back(std::make_unique<std::byte[]>(std::max<std::size_t>(bytes, 1)));
  bytes_ += bytes;
  return blocks_.back().get();
}

float element(const ConstTensor& tensor, std::int64_t i) {
  const auto* bytes = static_cast<const char*>(tensor.data) + bytes_of(tensor.dtype, i);
  if (tensor.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return tensor.dtype == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
}

void Binder::fail(std::string_view name, std::string_view expected, std::string_view given) const {
  throw Error(config_.path, name, expected, given);
}

ConstTensor Binder::take(const std::string& name, std::initializer_list<std::int64_t> shape, TensorUse use) {
  if (!source_.has(name)) fail(name, "a tensor " + shape_text(shape), "none of that name");
  const ConstTensor tensor = source_.tensor(name);
  weights_.used[name] = use;
  std::vector<std::int64_t> expected = shape;
  std::vector<std::int64_t> given(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
  std::erase(expected, 1);
  std::erase(given, 1);
  if (given != expected) fail(name, shape_text(shape), to_string(tensor));
  return {tensor.data, tensor.dtype, shape, tensor.device};
}

ConstTensor Binder::matrix(const std::string& name, std::initializer_list<std::int64_t> shape) {
  const ConstTensor tensor = take(name, shape, TensorUse::kMatrix);
  if (tensor.dtype == DType::kI32) fail(name, "weights", to_string(tensor));
  return tensor;
}

ConstTensor Binder::small(const std::string& name, std::initializer_list<std::int64_t> shape) {
  const ConstTensor tensor = take(name, shape, TensorUse::kSmall);
  if (!is_float(tensor.dtype)) fail(name, "F32, F16 or BF16", to_string(tensor));
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    const float value = element(tensor, i);
    if (!std::isfinite(value)) {
      fail(name, "finite values", std::to_string(value) + " at index " + std::to_string(i));
    }
  }
  return tensor;
}

ConstTensor Binder::sort_gate_rows(const ConstTensor& ba) {
  const std::int64_t ratio = config_.value_heads / config_.key_heads;
  const auto bytes = static_cast<std::size_t>(bytes_of(ba.dtype, ba.dim(1)));
  auto* memory = static_cast<char*>(allocate(bytes * static_cast<std::size_t>(ba.dim(0))));
  char* to = memory;
  for (std::int64_t part = 0; part < 2; ++part) {
    for (std::int64_t h = 0; h < config_.value_heads; ++h, to += bytes) {
      std::memcpy(to, ba.row((h / ratio * 2 + part) * ratio + h % ratio), bytes);
    }
  }
  return {memory, ba.dtype, {ba.dim(0), ba.dim(1)}, kCpu};
}

ConstTensor Binder::stack(const std::vector<ConstTensor>& matrices) {
  const ConstTensor& first = matrices.front();
  const auto count = static_cast<std::int64_t>(matrices.size());
  const std::int64_t bytes = bytes_of(first.dtype, first.size());
  ConstTensor whole(first.data, first.dtype, {count, first.dim(0), first.dim(1)}, first.device);
  const auto address = [&](std::int64_t e) {
    return reinterpret_cast<std::uintptr_t>(matrices[static_cast<std::size_t>(e)].data);
  };
  // Equal distances, but not so far apart that other tensors than an expert's own lie between.
  const std::int64_t distance = count > 1 ? static_cast<std::int64_t>(address(1) - address(0)) : bytes;
  const DTypeInfo info = dtype_info(first.dtype);
  bool regular = distance >= bytes && distance <= 4 * bytes && distance % info.block_bytes == 0;
  for (std::int64_t e = 1; regular && e < count; ++e) {
    regular = static_cast<std::int64_t>(address(e) - address(e - 1)) == distance;
  }
  if (regular) {
    whole.strides[0] = distance / info.block_bytes * info.block_size;
    return whole;
  }
  auto* memory = static_cast<char*>(allocate(static_cast<std::size_t>(bytes * count)));
  for (std::int64_t e = 0; e < count; ++e) {
    std::memcpy(memory + e * bytes, matrices[static_cast<std::size_t>(e)].data, static_cast<std::size_t>(bytes));
  }
  whole.data = memory;
  return whole;
}

Weights bind_weights(const ModelConfig& config, const io::TensorSource& source) {
  Weights weights;
  Binder binder(config, source, weights);
  weights.layers.resize(config.layers.size());
  if (config.naming == Naming::kGguf) {
    bind_gguf(binder, weights);
  } else {
    bind_hugging_face(binder, source, weights);
  }
  refuse_unread(config, source, weights, binder);
  return weights;
}

}  // namespace thalweg::model
