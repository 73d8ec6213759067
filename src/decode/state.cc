#include "decode/state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "thalweg/error.h"

namespace thalweg::decode {
namespace {

constexpr std::int64_t kFirstCapacity = 512;

}  // namespace

void StatePool::Free::operator()(void* memory) const { std::free(memory); }

StatePool::Memory StatePool::zeros(std::uint64_t bytes) const {
  bytes = std::max<std::uint64_t>(bytes, 1);
  Memory memory;
  if (runtime_.on_host()) {
    memory.host.reset(static_cast<std::byte*>(std::calloc(bytes, 1)));
    if (memory.host == nullptr) throw std::bad_alloc();
  } else {
    memory.device = DeviceMemory(runtime_.device(), bytes);
    runtime_.clear(memory.device.data(), bytes);
  }
  return memory;
}

StatePool::StatePool(const ModelConfig& config, const Runtime& runtime, int slots, std::int64_t context,
                     DType cache_dtype, DType state_dtype, std::int64_t drafts, bool mtp)
    : config_(config),
      runtime_(runtime),
      slots_(slots),
      context_(context),
      cache_dtype_(cache_dtype),
      state_dtype_(state_dtype),
      drafts_(drafts),
      mtp_(mtp),
      capacity_(runtime.on_host() ? 0 : context),
      layers_(config.layers.size() + (mtp ? 1 : 0)),
      lengths_(static_cast<std::size_t>(slots), 0),
      pending_(static_cast<std::size_t>(slots), 0),
      mtp_rows_(static_cast<std::size_t>(slots)),
      taken_(static_cast<std::size_t>(slots), false),
      copies_(runtime) {}

void StatePool::allocate() {
  const auto bytes = [](const Tensor& tensor) {
    return static_cast<std::uint64_t>(bytes_of(tensor.dtype, tensor.size()));
  };
  if (mtp_) layers_[mtp_layer()].drafts = zeros(bytes(mtp_hidden()));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!has_cache(i)) {
      layers_[i].first = zeros(bytes(recurrent(i)));
      layers_[i].second = zeros(bytes(conv(i)));
      if (drafts_ == 0) continue;
      layers_[i].drafts = zeros(bytes(draft_inputs(i)));
      layers_[i].draft_gates = zeros(bytes(draft_gates(i)));
    } else if (capacity_ > 0) {
      for (Memory* memory : {&layers_[i].first, &layers_[i].second}) {
        *memory = zeros(row_bytes() * static_cast<std::uint64_t>(rows(i, capacity_) * slots_));
      }
    }
  }
}

std::uint64_t StatePool::bytes() const {
  return static_cast<std::uint64_t>(slots_) *
         (fixed_bytes() + draft_bytes() + token_bytes() * static_cast<std::uint64_t>(context_));
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
  std::vector<MemoryCopy> zeros;
  for (const MemorySegment& segment : segments(slot, 0)) zeros.push_back({segment.data, nullptr, segment.bytes});
  runtime_.copy(zeros);
  if (group_ != nullptr) group_->clear(slot);
  set_length(slot, 0);
  set_pending(slot, 0);
  mtp_rows(slot) = {};
}

void StatePool::drop(int slot, std::int64_t tokens) {
  set_length(slot, length(slot) - tokens);
  set_pending(slot, pending(slot) - tokens);
  std::vector<std::int32_t>& kept = mtp_rows(slot).tokens;
  kept.resize(kept.size() - std::min(kept.size(), static_cast<std::size_t>(tokens)));
}

void StatePool::reserve(std::int64_t tokens) {
  if (tokens <= capacity_) return;
  std::int64_t capacity = std::max(capacity_, kFirstCapacity);
  while (capacity < tokens) capacity *= 2;
  // Layer by layer, so that only one layer's cache exists twice at a time.
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!has_cache(i)) continue;
    for (Memory* memory : {&layers_[i].first, &layers_[i].second}) {
      Memory larger = zeros(row_bytes() * static_cast<std::uint64_t>(rows(i, capacity) * slots_));
      for (int slot = 0; slot < slots_ && memory->data() != nullptr; ++slot) {
        runtime_.copy(larger.data() + row_bytes() * static_cast<std::uint64_t>(rows(i, capacity) * slot),
                      memory->data() + row_bytes() * static_cast<std::uint64_t>(rows(i, capacity_) * slot),
                      row_bytes() * static_cast<std::uint64_t>(rows(i, length(slot))));
      }
      *memory = std::move(larger);
    }
  }
  capacity_ = capacity;
}

Tensor StatePool::recurrent(std::size_t layer) const {
  return {layers_[layer].first.data(),
          state_dtype_,
          {slots_, config_.value_heads, config_.value_dim, config_.key_dim},
          runtime_.device()};
}

Tensor StatePool::conv(std::size_t layer) const {
  return {layers_[layer].second.data(),
          DType::kF32,
          {slots_, config_.conv_channels(), config_.conv_width - 1},
          runtime_.device()};
}

Tensor StatePool::draft_inputs(std::size_t layer) const {
  return {layers_[layer].drafts.data(),
          runtime_.activations(),
          {slots_, drafts_, config_.conv_channels()},
          runtime_.device()};
}

Tensor StatePool::draft_gates(std::size_t layer) const {
  return {layers_[layer].draft_gates.data(),
          DType::kF32,
          {slots_, drafts_, std::int64_t{2} * config_.value_heads},
          runtime_.device()};
}

Tensor StatePool::cache(std::size_t layer, const Memory& memory) const {
  Tensor cache(memory.data(), cache_dtype_, {slots_, capacity_, config_.kv_heads, config_.head_dim}, runtime_.device());
  if (!is_mtp(layer)) return cache;
  cache.strides[0] += cache.strides[1];
  if (cache.data != nullptr) cache.data = static_cast<std::byte*>(cache.data) + row_bytes();
  return cache;
}

Tensor StatePool::keys(std::size_t layer) const { return cache(layer, layers_[layer].first); }
Tensor StatePool::values(std::size_t layer) const { return cache(layer, layers_[layer].second); }

Tensor StatePool::mtp_hidden() const {
  return {layers_[mtp_layer()].drafts.data(), DType::kF32, {slots_, mtp_kept(), config_.hidden}, runtime_.device()};
}

std::vector<MemorySegment> StatePool::state_segments(int slot, std::size_t layer) const {
  if (is_mtp(layer)) return {{static_cast<std::byte*>(mtp_hidden().row(slot)), mtp_fixed_bytes()}};
  if (has_cache(layer)) return {};
  std::vector<MemorySegment> all;
  for (const Tensor& state : {recurrent(layer), conv(layer)}) {
    all.push_back(
        {static_cast<std::byte*>(state.row(slot)), static_cast<std::size_t>(bytes_of(state.dtype, state.stride(0)))});
  }
  return all;
}

std::vector<MemorySegment> StatePool::cache_segments(int slot, std::size_t layer, std::int64_t first,
                                                     std::int64_t count) const {
  if (!has_cache(layer) || count == 0) return {};
  std::vector<MemorySegment> all;
  for (const Memory* memory : {&layers_[layer].first, &layers_[layer].second}) {
    all.push_back({memory->data() + row_bytes() * static_cast<std::uint64_t>(rows(layer, capacity_) * slot + first),
                   static_cast<std::size_t>(row_bytes() * static_cast<std::uint64_t>(count))});
  }
  return all;
}

std::vector<MemorySegment> StatePool::cache_segments(int slot, std::int64_t first, std::int64_t count) const {
  std::vector<MemorySegment> all;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const MemorySegment& segment : cache_segments(slot, i, first, count)) all.push_back(segment);
  }
  return all;
}

std::vector<MemorySegment> StatePool::segments(int slot, std::int64_t length, bool mtp) const {
  std::vector<MemorySegment> all;
  for (std::size_t i = 0; i < (mtp ? layers_.size() : config_.layers.size()); ++i) {
    for (const MemorySegment& segment : state_segments(slot, i)) all.push_back(segment);
    for (const MemorySegment& segment : cache_segments(slot, i, 0, length)) all.push_back(segment);
  }
  return all;
}

void StatePool::read_segments(std::span<const MemorySegment> segments, std::byte* to) const {
  if (!runtime_.on_host()) return copies_.read(segments, to);
  for (const MemorySegment& segment : segments) {
    std::memcpy(to, segment.data, segment.bytes);
    to += segment.bytes;
  }
}

void StatePool::write_segments(std::span<const MemorySegment> segments, const std::byte* from) {
  if (!runtime_.on_host()) return copies_.write(segments, from);
  for (const MemorySegment& segment : segments) {
    std::memcpy(segment.data, from, segment.bytes);
    from += segment.bytes;
  }
}

void StatePool::read_states(int slot, std::byte* to) const {
  read_segments(segments(slot, 0), to);
  if (group_ != nullptr) group_->read({slot, true, 0, 0}, to + fixed_bytes_here());
}

void StatePool::write_states(int slot, const std::byte* from) {
  write_segments(segments(slot, 0), from);
  set_pending(slot, 0);
  mtp_rows(slot) = {};
  if (group_ == nullptr) return;
  const SlotPart part{slot, true, 0, 0};
  if (group_->replicas()) return replicate(part);
  group_->write(part, from + fixed_bytes_here());
}

void StatePool::read_cache(int slot, std::int64_t first, std::int64_t count, std::byte* to) const {
  read_segments(cache_segments(slot, first, count), to);
  const std::uint64_t here = token_bytes_here() * static_cast<std::uint64_t>(count);
  if (group_ != nullptr) group_->read({slot, false, first, count}, to + here);
}

void StatePool::write_cache(int slot, std::int64_t first, std::int64_t count, const std::byte* from) {
  write_segments(cache_segments(slot, first, count), from);
  if (group_ == nullptr) return;
  const SlotPart part{slot, false, first, count};
  if (group_->replicas()) return replicate(part);
  group_->write(part, from + token_bytes_here() * static_cast<std::uint64_t>(count));
}

void StatePool::replicate(const SlotPart& part) const {
  std::vector<MemorySegment> all;
  if (part.states) all = segments(part.slot, 0);
  for (const MemorySegment& segment : cache_segments(part.slot, part.first, part.count)) all.push_back(segment);
  std::size_t bytes = 0;
  for (const MemorySegment& segment : all) bytes += segment.bytes;
  std::vector<std::byte> memory(bytes);
  read_segments(all, memory.data());
  group_->write(part, memory.data());
}

void StatePool::copy_states_to(int slot, std::span<const MemorySegment> to, Copies& copies) const {
  add_copies(to, segments(slot, 0), copies);
}

void StatePool::copy_states_from(int slot, std::span<const MemorySegment> from, Copies& copies) {
  add_copies(segments(slot, 0), from, copies);
  set_pending(slot, 0);
  mtp_rows(slot) = {};
}

void StatePool::copy_cache_to(int slot, std::int64_t first, std::int64_t count, std::span<const MemorySegment> to,
                              Copies& copies) const {
  add_copies(to, cache_segments(slot, first, count), copies);
}

void StatePool::copy_cache_from(int slot, std::int64_t first, std::int64_t count, std::span<const MemorySegment> from,
                                Copies& copies) {
  add_copies(cache_segments(slot, first, count), from, copies);
}

void StatePool::read(int slot, std::int64_t length, const std::function<void(std::span<const std::byte>)>& take,
                     bool mtp) const {
  std::vector<std::byte> staged;
  for (const MemorySegment& segment : segments(slot, length, mtp)) {
    if (runtime_.on_host()) {
      take({segment.data, segment.bytes});
      continue;
    }
    staged.resize(segment.bytes);
    runtime_.download(staged.data(), segment.data, segment.bytes);
    take(staged);
  }
  if (group_ == nullptr) return;
  const SlotPart part{slot, true, 0, length};
  staged.resize(group_->others_bytes(part));
  group_->read(part, staged.data());
  take(staged);
}

void StatePool::write(int slot, std::int64_t length, const std::function<std::span<const std::byte>(std::size_t)>& give,
                      bool mtp) {
  set_pending(slot, 0);
  mtp_rows(slot) = {.tokens = {}, .lost = mtp_ && !mtp};
  for (const MemorySegment& segment : segments(slot, length, mtp)) {
    runtime_.upload(segment.data, give(segment.bytes).data(), segment.bytes);
  }
  runtime_.wait();
  if (group_ == nullptr) return;
  const SlotPart part{slot, true, 0, length};
  if (group_->replicas()) return replicate(part);
  group_->write(part, give(group_->others_bytes(part)).data());
}

std::uint64_t StatePool::row_bytes() const {
  return static_cast<std::uint64_t>(bytes_of(cache_dtype_, std::int64_t{config_.kv_heads} * config_.head_dim));
}

std::uint64_t StatePool::fixed_bytes() const {
  return fixed_bytes_here() + (group_ != nullptr ? group_->others_bytes({0, true, 0, 0}) : 0);
}

std::uint64_t StatePool::token_bytes() const {
  return token_bytes_here() + (group_ != nullptr ? group_->others_bytes({0, false, 0, 1}) : 0);
}

std::uint64_t StatePool::fixed_bytes_here() const {
  std::uint64_t bytes = 0;
  for (const MemorySegment& segment : segments(0, 0)) bytes += segment.bytes;
  return bytes;
}

std::uint64_t StatePool::token_bytes_here() const {
  const auto layers = std::count(config_.layers.begin(), config_.layers.end(), LayerKind::kAttention);
  return 2 * row_bytes() * static_cast<std::uint64_t>(layers) + (mtp_ ? mtp_token_bytes() : 0);
}

std::uint64_t StatePool::mtp_fixed_bytes() const { return static_cast<std::uint64_t>(config_.hidden) * sizeof(float); }

std::uint64_t StatePool::mtp_token_bytes() const { return 2 * row_bytes(); }

std::uint64_t StatePool::draft_bytes() const {
  // The MTP layer's row of no token, and hidden states but for the one that is in fixed_bytes().
  std::uint64_t bytes = mtp_ ? mtp_token_bytes() + mtp_fixed_bytes() * static_cast<std::uint64_t>(mtp_kept() - 1) : 0;
  for (std::size_t i = 0; i < config_.layers.size() && drafts_ > 0; ++i) {
    if (has_cache(i)) continue;
    for (const Tensor& kept : {draft_inputs(i), draft_gates(i)}) {
      bytes += static_cast<std::uint64_t>(bytes_of(kept.dtype, kept.stride(0)));
    }
  }
  return bytes;
}

}  // namespace thalweg::decode
