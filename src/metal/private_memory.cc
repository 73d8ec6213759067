#include "metal/private_memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <new>
#include <optional>

namespace thalweg::metal {
namespace {

struct Allocation {
  std::size_t bytes = 0;
  Storage storage = Storage::kShared;
};

struct Known {
  std::mutex mutex;
  std::map<const std::byte*, Allocation> allocations;  // by address
};

Known& known() {
  static Known instance;
  return instance;
}

std::optional<Allocation> find(const void* memory) {
  const auto* byte = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(known().mutex);
  auto next = known().allocations.upper_bound(byte);
  if (next == known().allocations.begin()) return {};
  --next;
  if (byte >= next->first + next->second.bytes) return {};
  return next->second;
}

}  // namespace

void* reserve_addresses(std::size_t bytes) {
  void* addresses = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED) throw std::bad_alloc();
  return addresses;
}

void release_addresses(void* addresses, std::size_t bytes) noexcept { munmap(addresses, bytes); }

void note_allocation(const void* memory, std::size_t bytes, Storage storage) {
  const std::lock_guard lock(known().mutex);
  known().allocations[static_cast<const std::byte*>(memory)] = {bytes, storage};
}

std::size_t forget_allocation(const void* memory) noexcept {
  const std::lock_guard lock(known().mutex);
  const auto found = known().allocations.find(static_cast<const std::byte*>(memory));
  if (found == known().allocations.end()) return 0;
  const std::size_t bytes = found->second.bytes;
  known().allocations.erase(found);
  return bytes;
}

bool is_allocated(const void* memory) { return find(memory).has_value(); }

bool is_private(const void* memory) {
  const std::optional<Allocation> found = find(memory);
  return found.has_value() && found->storage == Storage::kPrivate;
}

}  // namespace thalweg::metal
