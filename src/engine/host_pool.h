#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "decode/runtime.h"

namespace thalweg::engine {

// Pinned memory of the host in blocks of two sizes, which copies from a device and to it reach without the host. It
// grows as it is needed, and what is given back is handed out again: fresh memory would cost more than the copies. What
// the device writes is there in the order of the model's stream.
class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  // At most so many bytes.
  HostPool(const decode::Runtime& runtime, std::size_t block, std::size_t checkpoint, std::uint64_t most);

  // Memory of one of the two sizes, which any thread may give back; null if there is no more.
  std::shared_ptr<std::byte[]> take(std::size_t bytes);
  bool owns(const void* memory) const;

 private:
  struct Size {
    std::size_t bytes;
    std::vector<std::byte*> free;
  };

  bool grow(Size& size);

  const decode::Runtime& runtime_;
  std::uint64_t most_;
  std::uint64_t allocated_ = 0;
  mutable std::mutex mutex_;
  Size sizes_[2];
  std::vector<std::unique_ptr<decode::PinnedMemory>> slabs_;
};

}  // namespace thalweg::engine
