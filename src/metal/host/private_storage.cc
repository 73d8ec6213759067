#include "metal/host/private_storage.h"

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "metal/private_memory.h"
#include "thalweg/error.h"

namespace thalweg::metal {
namespace {

constexpr std::align_val_t kAlignment{256};

struct Free {
  void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
};

struct Stored {
  std::unique_ptr<std::byte, Free> memory;
  std::size_t bytes = 0;
};

struct Storages {
  std::mutex mutex;
  std::map<const std::byte*, Stored> by_address;
};

Storages& storages() {
  static Storages instance;
  return instance;
}

const void* storage_of(const Launch& launch, const void* data, std::size_t bytes) {
  const auto* byte = static_cast<const std::byte*>(data);
  const std::lock_guard lock(storages().mutex);
  auto next = storages().by_address.upper_bound(byte);
  if (data == nullptr || next == storages().by_address.begin()) return data;
  --next;
  const Stored& stored = next->second;
  const auto offset = static_cast<std::size_t>(byte - next->first);
  if (offset >= stored.bytes) return data;
  if (bytes > stored.bytes - offset) {
    throw Error(launch.operation, "kernel " + std::string(launch.kernel),
                "a buffer of at most the " + std::to_string(stored.bytes - offset) + " bytes of its private memory",
                std::to_string(bytes) + " bytes");
  }
  return stored.memory.get() + offset;
}

}  // namespace

void* allocate_private(std::size_t bytes) {
  Stored stored{std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(::operator new(bytes, kAlignment))), bytes};
  void* addresses = reserve_addresses(bytes);
  const std::lock_guard lock(storages().mutex);
  storages().by_address[static_cast<const std::byte*>(addresses)] = std::move(stored);
  return addresses;
}

void release_private(void* memory) noexcept {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(storages().mutex);
    const auto found = storages().by_address.find(static_cast<const std::byte*>(memory));
    if (found == storages().by_address.end()) return;
    bytes = found->second.bytes;
    storages().by_address.erase(found);
  }
  release_addresses(memory, bytes);
}

Launch with_storage(const Launch& launch) {
  Launch stored = launch;
  for (int i = 0; i < launch.num_buffers; ++i) {
    Buffer& buffer = stored.buffers[static_cast<std::size_t>(i)];
    buffer.data = storage_of(launch, buffer.data, buffer.bytes);
  }
  stored.indirect_grid = static_cast<const std::uint32_t*>(
      storage_of(launch, launch.indirect_grid, sizeof(std::uint32_t) * launch.grid.size()));
  return stored;
}

}  // namespace thalweg::metal
