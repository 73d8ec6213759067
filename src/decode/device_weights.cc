#include "decode/device_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/threads.h"

namespace thalweg::decode {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kStagedBytes = std::size_t{64} << 20;
constexpr std::size_t kTaskBytes = std::size_t{1} << 20;

std::size_t size_in_bytes(const ConstTensor& tensor) {
  return static_cast<std::size_t>(bytes_of(tensor.dtype, tensor.size()));
}

bool is_contiguous(const ConstTensor& tensor) {
  std::int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.dim(i) > 1 && tensor.stride(i) != stride) return false;
    stride *= tensor.dim(i);
  }
  return true;
}

// The same shape, contiguous, on another device and without memory yet.
ConstTensor moved(const ConstTensor& tensor, Device device) {
  ConstTensor result = tensor;
  result.data = nullptr;
  result.device = device;
  result.alignment = 0;
  std::int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    result.strides[static_cast<std::size_t>(i)] = stride;
    stride *= std::max<std::int64_t>(1, tensor.dim(i));
  }
  return result;
}

std::vector<float> plain_frequencies(const checkpoint::ModelConfig& config) {
  std::vector<float> frequencies;
  for (int i = 0; i < config.rotary_dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / config.rotary_dim;
    frequencies.push_back(static_cast<float>(std::pow(static_cast<double>(config.rope_theta), exponent)));
  }
  return frequencies;
}

}  // namespace

DeviceWeights::DeviceWeights(const checkpoint::ModelConfig& config, const checkpoint::Weights& host,
                             const Runtime& runtime, bool mtp)
    : runtime_(runtime) {
  weights_.embedding = host.embedding;
  weights_.norm = host.norm;
  weights_.head = host.head;
  weights_.layers = host.layers;
  weights_.rope_frequencies = host.rope_frequencies;
  if (!host.rope_frequencies.defined()) {
    frequencies_ = plain_frequencies(config);
    weights_.rope_frequencies =
        ConstTensor(frequencies_.data(), DType::kF32, {static_cast<std::int64_t>(frequencies_.size())}, kCpu);
  }
  for (ConstTensor* tensor : {&weights_.rope_frequencies, &weights_.embedding, &weights_.norm, &weights_.head}) {
    place(*tensor);
  }
  for (checkpoint::LayerWeights& layer : weights_.layers) place_layer(layer);
  if (!mtp) return;
  weights_.mtp = host.mtp;
  checkpoint::MtpWeights& w = weights_.mtp;
  place_layer(w.layer);
  for (ConstTensor* tensor : {&w.embedding_norm, &w.hidden_norm, &w.fc, &w.norm, &w.embedding, &w.head}) {
    place(*tensor);
  }
}

DeviceWeights::~DeviceWeights() {
  for (const void* memory : mapped_) runtime_.unmap_host(memory);
}

void DeviceWeights::place_layer(checkpoint::LayerWeights& layer) {
  checkpoint::GatedDeltaWeights& delta = layer.gated_delta;
  checkpoint::AttentionWeights& attention = layer.attention;
  checkpoint::DenseWeights& dense = layer.dense;
  place_together({&delta.qkv, &delta.z}, delta.qkv_and_z);
  place_together({&delta.b, &delta.a}, delta.ba);
  if (!place_together({&attention.q, &attention.k, &attention.v}, attention.qkv)) {
    place_together({&attention.q, &attention.k}, attention.qk);
  }
  place_together({&dense.gate, &dense.up}, dense.gate_and_up);
  checkpoint::MoeWeights& moe = layer.moe;
  for (ConstTensor* tensor :
       {&layer.input_norm, &layer.post_norm, &delta.qkv,       &delta.z,       &delta.qkvz,      &delta.b,
        &delta.a,          &delta.ba,        &delta.conv,      &delta.a_log,   &delta.dt_bias,   &delta.norm,
        &delta.out,        &attention.q,     &attention.k,     &attention.v,   &attention.o,     &attention.q_norm,
        &attention.k_norm, &dense.gate,      &dense.up,        &dense.down,    &moe.router,      &moe.gate,
        &moe.up,           &moe.down,        &moe.shared_gate, &moe.shared_up, &moe.shared_down, &moe.shared_router}) {
    place(*tensor);
  }
}

std::size_t DeviceWeights::add_part(const ConstTensor& source) {
  const std::size_t bytes = size_in_bytes(source);
  const auto [found, is_new] = places_.try_emplace({source.data, bytes}, bytes_);
  if (!is_new) return found->second;
  const auto* from = static_cast<const std::byte*>(source.data);
  if (is_contiguous(source)) {
    parts_.push_back({from, bytes, bytes_});
  } else {
    // Slices of the outermost dimension are: weights' rows are contiguous by contract.
    const std::size_t slice = bytes / static_cast<std::size_t>(source.dim(0));
    for (std::int64_t i = 0; i < source.dim(0); ++i) {
      parts_.push_back(
          {static_cast<const std::byte*>(source.row(i)), slice, bytes_ + static_cast<std::size_t>(i) * slice});
    }
  }
  bytes_ += bytes;
  return found->second;
}

void DeviceWeights::share(ConstTensor& tensor) {
  std::int64_t last = 0;
  for (int i = 0; i + 1 < tensor.rank; ++i) last += (tensor.dim(i) - 1) * tensor.stride(i);
  const auto bytes = static_cast<std::size_t>(bytes_of(tensor.dtype, last + tensor.dim(tensor.rank - 1)));
  if (places_.try_emplace({tensor.data, bytes}, 0).second) bytes_ += bytes;
  tensor.device = runtime_.device();
}

void DeviceWeights::place(ConstTensor& tensor) {
  if (!tensor.defined() || tensor.device == runtime_.device()) return;
  if (runtime_.reads_host_memory()) return share(tensor);
  bytes_ = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t offset = add_part(tensor);
  tensor = moved(tensor, runtime_.device());
  views_.push_back({&tensor, offset});
}

bool DeviceWeights::place_together(std::initializer_list<ConstTensor*> matrices, ConstTensor& joined) {
  const ConstTensor& first = **matrices.begin();
  if (joined.defined() || runtime_.reads_host_memory()) return false;
  std::int64_t rows = 0;
  for (const ConstTensor* matrix : matrices) {
    if (!matrix->defined() || matrix->dtype != first.dtype || matrix->dim(1) != first.dim(1)) return false;
    rows += matrix->dim(0);
  }
  bytes_ = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t begin = bytes_;
  for (ConstTensor* matrix : matrices) {
    const std::size_t offset = add_part(*matrix);
    *matrix = moved(*matrix, runtime_.device());
    views_.push_back({matrix, offset});
  }
  joined = ConstTensor(nullptr, first.dtype, {rows, first.dim(1)}, runtime_.device());
  views_.push_back({&joined, begin});
  return true;
}

void DeviceWeights::load(const std::function<void(double)>& progress) {
  if (runtime_.reads_host_memory()) {
    for (const auto& [place, offset] : places_) {
      runtime_.map_host(place.first, place.second);
      mapped_.push_back(place.first);
    }
    if (progress) progress(1.0);
    return;
  }
  places_.clear();
  memory_ = DeviceMemory(runtime_.device(), bytes_);
  copy_parts(progress);
  for (const View& view : views_) view.tensor->data = static_cast<const std::byte*>(memory_.data()) + view.offset;
  parts_.clear();
}

void DeviceWeights::copy_parts(const std::function<void(double)>& progress) {
  const PinnedMemory first(runtime_, std::min(bytes_, kStagedBytes));
  const PinnedMemory second(runtime_, first.bytes());
  const PinnedMemory* staged = &first;
  const PinnedMemory* in_flight = &second;
  std::size_t done = 0;
  for (const Part& part : parts_) {
    for (std::size_t begin = 0; begin < part.bytes; begin += staged->bytes()) {
      const std::size_t count = std::min(staged->bytes(), part.bytes - begin);
      const auto tasks = static_cast<std::int64_t>((count + kTaskBytes - 1) / kTaskBytes);
      parallel_for(Stream::cpu(runtime_.stream().threads), tasks, [&](std::int64_t task, int) {
        const std::size_t at = static_cast<std::size_t>(task) * kTaskBytes;
        std::memcpy(staged->data() + at, part.from + begin + at, std::min(kTaskBytes, count - at));
      });
      runtime_.wait();  // for the copy from the other memory, which is filled next
      runtime_.upload(static_cast<std::byte*>(memory_.data()) + part.offset + begin, staged->data(), count);
      std::swap(staged, in_flight);
      done += count;
      if (progress) progress(static_cast<double>(done) / static_cast<double>(bytes_));
    }
  }
  runtime_.wait();
}

}  // namespace thalweg::decode
