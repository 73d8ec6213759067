#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/device_pages.h"
#include "engine/model_slots.h"
#include "engine/prefix_cache.h"

namespace thalweg::engine {

// A model's prefix cache: in the memory of its device, as far as the budget goes, and in the host's. What the device
// has no room for any more goes to the host; what is dropped there is gone. A prefix that is continued from the host is
// copied to the device again with what follows it.
class TieredCache {
 public:
  struct Budgets {
    std::uint64_t device = 0;  // bytes; of no use unless slots.has_pages()
    std::uint64_t host = 0;
  };
  // Throws Error if the device has not so much memory.
  TieredCache(ModelSlots& slots, const Budgets& budgets);
  ~TieredCache();

  struct Hit {
    std::int64_t tokens = 0;        // up to the last checkpoint
    std::int64_t known = 0;         // whole blocks whose keys and values are known: other texts diverge from here on
    Prefix<DeviceBytes> on_device;  // one of them has `tokens` tokens
    Prefix<HostBytes> on_host;
  };
  // The longest checkpoint of the text's beginning, which counts as used.
  Hit find(std::span<const std::int32_t> text);
  // Makes an empty sequence the beginning of the text that was found.
  void restore(Sequence& sequence, std::span<const std::int32_t> text, const Hit& hit);

  // Keeps what a sequence has come to. `on_host`: there too, and returns it, unless it exceeds the budget.
  std::optional<Prefix<HostBytes>> keep(const Sequence& sequence, bool on_host);
  // What comes from elsewhere.
  void insert(std::span<const std::int32_t> text, const Prefix<HostBytes>& prefix) { host_.insert(text, prefix); }

  bool enabled() const { return device_.has_value() || host_budget_ > 0; }
  void clear();

  std::uint64_t device_bytes() const { return device_ ? device_->bytes() : 0; }
  std::uint64_t device_budget() const { return pages_ != nullptr ? pages_->bytes() : 0; }
  std::uint64_t host_bytes() const { return host_.bytes(); }
  std::size_t checkpoints() const { return host_.checkpoints() + (device_ ? device_->checkpoints() : 0); }
  std::uint64_t evictions() const { return host_.evictions() + evictions_to_nowhere_; }

 private:
  void move_to_host(std::span<const std::int32_t> text, const Prefix<DeviceBytes>& prefix);
  bool keep_on_host(const Sequence& sequence);
  bool keep_on_device(const Sequence& sequence);

  ModelSlots& slots_;
  std::uint64_t host_budget_;
  PrefixCache<HostBytes> host_;
  std::shared_ptr<PagePool> pages_;      // null: no tier on the device
  std::shared_ptr<HostPool> host_pool_;  // of what comes from there
  std::optional<PrefixCache<DeviceBytes>> device_;
  std::uint64_t evictions_to_nowhere_ = 0;  // from the device, of what the host has no room for
};

}  // namespace thalweg::engine
