#include "decode/state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "thalweg/error.h"

namespace thalweg::model {
namespace {

constexpr std::int64_t kFirstCapacity = 512;

}  // namespace

void StatePool::Free::operator()(void* memory) const { std::free(memory); }

// Zeroed, and from the system: pages of slots that are never used are never there.
StatePool::Memory StatePool::allocate(std::uint64_t bytes) {
  void* memory = std::calloc(std::max<std::uint64_t>(bytes, 1), 1);
  if (memory == nullptr) throw std::bad_alloc();
  return Memory(static_cast<std::byte*>(memory));
}

StatePool::StatePool(const ModelConfig& config, int slots, std::int64_t context, DType cache_dtype)
    : config_(config),
      slots_(slots),
      context_(context),
      cache_dtype_(cache_dtype),
      layers_(config.layers.size()),
      lengths_(static_cast<std::size_t>(slots), 0),
      taken_(static_cast<std::size_t>(slots), false) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config.layers[i] != LayerKind::kGatedDelta) continue;
    const auto count = static_cast<std::uint64_t>(slots);
    layers_[i].first = allocate(count * static_cast<std::uint64_t>(config.value_channels() * config.key_dim) * 4);
    layers_[i].second =
        allocate(count * static_cast<std::uint64_t>(config.conv_channels() * (config.conv_width - 1)) * 4);
  }
}

int StatePool::acquire() {
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  if (free == taken_.end()) {
    throw Error("model", "sequences", "at most " + std::to_string(slots_) + " at once (ModelOptions::sequences)",
                "one more");
  }
  const int slot = static_cast<int>(free - taken_.begin());
  clear(slot);
  *free = true;
  return slot;
}

void StatePool::release(int slot) {
  set_length(slot, 0);
  taken_[static_cast<std::size_t>(slot)] = false;
}

void StatePool::clear(int slot) {
  for (std::span<std::byte> piece : pieces(slot, 0)) std::memset(piece.data(), 0, piece.size());
  set_length(slot, 0);
}

void StatePool::reserve(std::int64_t tokens) {
  if (tokens <= capacity_) return;
  std::int64_t capacity = std::max(capacity_, kFirstCapacity);
  while (capacity < tokens) capacity *= 2;
  // Layer by layer, so that no more than one layer's cache is there twice.
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config_.layers[i] != LayerKind::kAttention) continue;
    for (Memory* memory : {&layers_[i].first, &layers_[i].second}) {
      Memory larger = allocate(row_bytes() * static_cast<std::uint64_t>(capacity * slots_));
      for (int slot = 0; slot < slots_ && *memory; ++slot) {
        std::memcpy(larger.get() + row_bytes() * static_cast<std::uint64_t>(capacity * slot),
                    memory->get() + row_bytes() * static_cast<std::uint64_t>(capacity_ * slot),
                    row_bytes() * static_cast<std::uint64_t>(length(slot)));
      }
      *memory = std::move(larger);
    }
  }
  capacity_ = capacity;
}

Tensor StatePool::recurrent(std::size_t layer) const {
  return {
      layers_[layer].first.get(), DType::kF32, {slots_, config_.value_heads, config_.value_dim, config_.key_dim}, kCpu};
}

Tensor StatePool::conv(std::size_t layer) const {
  return {layers_[layer].second.get(), DType::kF32, {slots_, config_.conv_channels(), config_.conv_width - 1}, kCpu};
}

Tensor StatePool::cache(const Memory& memory) const {
  return {memory.get(), cache_dtype_, {slots_, capacity_, config_.kv_heads, config_.head_dim}, kCpu};
}

Tensor StatePool::keys(std::size_t layer) const { return cache(layers_[layer].first); }
Tensor StatePool::values(std::size_t layer) const { return cache(layers_[layer].second); }

std::vector<std::span<std::byte>> StatePool::pieces(int slot, std::int64_t length) const {
  std::vector<std::span<std::byte>> pieces;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config_.layers[i] == LayerKind::kGatedDelta) {
      for (const Tensor& state : {recurrent(i), conv(i)}) {
        pieces.emplace_back(static_cast<std::byte*>(state.row(slot)),
                            static_cast<std::size_t>(bytes_of(state.dtype, state.stride(0))));
      }
    } else if (length > 0) {
      for (const Memory* memory : {&layers_[i].first, &layers_[i].second}) {
        pieces.emplace_back(memory->get() + row_bytes() * static_cast<std::uint64_t>(capacity_ * slot),
                            static_cast<std::size_t>(row_bytes() * static_cast<std::uint64_t>(length)));
      }
    }
  }
  return pieces;
}

std::uint64_t StatePool::row_bytes() const {
  return static_cast<std::uint64_t>(bytes_of(cache_dtype_, std::int64_t{config_.kv_heads} * config_.head_dim));
}

std::uint64_t StatePool::fixed_bytes() const {
  std::uint64_t bytes = 0;
  for (std::span<std::byte> piece : pieces(0, 0)) bytes += piece.size();
  return bytes;
}

std::uint64_t StatePool::token_bytes() const {
  const auto layers = std::count(config_.layers.begin(), config_.layers.end(), LayerKind::kAttention);
  return 2 * row_bytes() * static_cast<std::uint64_t>(layers);
}

}  // namespace thalweg::model
