#include "engine/tiered_cache.h"

#include <algorithm>

#include "thalweg/error.h"

namespace thalweg::engine {

TieredCache::TieredCache(ModelSlots& slots, const Budgets& budgets)
    : slots_(slots), host_budget_(budgets.host), host_(slots.block_bytes(), slots.checkpoint_bytes(), budgets.host) {
  if (!slots.has_pages() || budgets.device < slots.checkpoint_bytes()) return;
  pages_ = slots.make_pages(budgets.device);
  host_pool_ = slots.make_host_pool(budgets.host);
  device_.emplace(
      pages_->rounded(slots.block_bytes()), pages_->rounded(slots.checkpoint_bytes()), pages_->bytes(),
      [this](std::span<const std::int32_t> text, const Prefix<DeviceBytes>& prefix) { move_to_host(text, prefix); });
}

// The device may still be writing the host's memory.
TieredCache::~TieredCache() {
  if (host_pool_ == nullptr) return;
  try {
    slots_.wait();
  } catch (const Error&) {  // the device is lost
    return;
  }
}

// The device copies it before it writes the pages anew.
void TieredCache::move_to_host(std::span<const std::int32_t> text, const Prefix<DeviceBytes>& prefix) {
  ModelSlots::Copies copies;
  try {
    const bool kept = host_.insert(
        text,
        [&](std::int64_t first, std::int64_t count) {
          return slots_.read_block(*prefix.blocks[static_cast<std::size_t>(first / kBlock)], count, *host_pool_,
                                   copies);
        },
        [&] { return slots_.read_checkpoint(*prefix.checkpoint, *host_pool_, copies); });
    if (!kept) ++evictions_to_nowhere_;
    slots_.copy(copies);
  } catch (...) {
    host_.clear();  // memory that nothing was copied to
    throw;
  }
}

TieredCache::Hit TieredCache::find(std::span<const std::int32_t> text) {
  Hit hit;
  if (device_) {
    PrefixCache<DeviceBytes>::Hit found = device_->find(text);
    hit.tokens = found.tokens;
    hit.known = found.known;
    hit.on_device = std::move(found.prefix);
  }
  PrefixCache<HostBytes>::Hit found = host_.find(text);
  hit.known = std::max(hit.known, found.known);
  if (found.tokens <= hit.tokens) return hit;
  hit.tokens = found.tokens;
  hit.on_host = std::move(found.prefix);
  return hit;
}

void TieredCache::restore(Sequence& sequence, std::span<const std::int32_t> text, const Hit& hit) {
  if (hit.on_host.tokens == hit.tokens) {
    slots_.restore(sequence, text, hit.on_host, host_pool_.get());
  } else {
    slots_.restore(sequence, text, hit.on_device);
  }
}

bool TieredCache::keep_on_host(const Sequence& sequence) {
  return host_.insert(
      sequence.tokens(),
      [&](std::int64_t first, std::int64_t count) { return slots_.read_block(sequence, first, count); },
      [&] { return slots_.read_checkpoint(sequence); });
}

bool TieredCache::keep_on_device(const Sequence& sequence) {
  ModelSlots::Copies copies;
  try {
    const bool kept = device_->insert(
        sequence.tokens(),
        [&](std::int64_t first, std::int64_t count) {
          return slots_.copy_block(sequence, first, count, *pages_, copies);
        },
        [&] { return slots_.copy_checkpoint(sequence, *pages_, copies); });
    slots_.copy(copies);
    return kept;
  } catch (...) {
    device_->clear();  // pages that nothing was copied to
    throw;
  }
}

std::optional<Prefix<HostBytes>> TieredCache::keep(const Sequence& sequence, bool on_host) {
  const bool kept = device_ && keep_on_device(sequence);
  if ((kept && !on_host) || !keep_on_host(sequence) || !on_host) return std::nullopt;
  if (host_pool_ != nullptr) slots_.wait();  // the host reads what came from the device
  return host_.find(sequence.tokens()).prefix;
}

void TieredCache::clear() {
  if (device_) device_->clear();
  host_.clear();
}

}  // namespace thalweg::engine
