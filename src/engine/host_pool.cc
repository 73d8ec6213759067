#include "engine/host_pool.h"

#include <algorithm>

#include "thalweg/error.h"

namespace thalweg::engine {
namespace {

constexpr std::size_t kSlab = std::size_t{64} << 20;  // pinning costs time for each call

}  // namespace

HostPool::HostPool(const decode::Runtime& runtime, std::size_t block, std::size_t checkpoint, std::uint64_t most)
    : runtime_(runtime), most_(most), sizes_{{block, {}}, {checkpoint, {}}} {}

bool HostPool::grow(Size& size) {
  const std::size_t count = std::max<std::size_t>(1, kSlab / size.bytes);
  if (allocated_ + count * size.bytes > most_) return false;
  size.free.reserve(size.free.capacity() + count);  // giving back must not allocate
  try {
    slabs_.push_back(std::make_unique<decode::PinnedMemory>(runtime_, count * size.bytes));
  } catch (const Error&) {
    most_ = allocated_;
    return false;
  }
  allocated_ += count * size.bytes;
  for (std::size_t i = count; i-- > 0;) size.free.push_back(slabs_.back()->data() + i * size.bytes);
  return true;
}

std::shared_ptr<std::byte[]> HostPool::take(std::size_t bytes) {
  Size* const size = &sizes_[bytes == sizes_[0].bytes ? 0 : 1];
  if (bytes == 0 || bytes != size->bytes) return nullptr;
  std::byte* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (size->free.empty() && !grow(*size)) return nullptr;
    memory = size->free.back();
    size->free.pop_back();
  }
  return {memory, [pool = shared_from_this(), size](std::byte* given) {
            const std::lock_guard lock(pool->mutex_);
            size->free.push_back(given);
          }};
}

bool HostPool::owns(const void* memory) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(slabs_.begin(), slabs_.end(),
                     [&](const auto& slab) { return memory >= slab->data() && memory < slab->data() + slab->bytes(); });
}

}  // namespace thalweg::engine
