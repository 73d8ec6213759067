#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "decode/memory_segments.h"
#include "decode/runtime.h"
#include "thalweg/device_memory.h"

namespace thalweg::engine {

class PagePool;

// Some pages of a pool, which takes them back when this is destroyed.
class DevicePages {
 public:
  DevicePages(std::shared_ptr<PagePool> pool, std::vector<std::uint32_t> pages);
  ~DevicePages();
  DevicePages(const DevicePages&) = delete;
  DevicePages& operator=(const DevicePages&) = delete;

  std::vector<decode::MemorySegment> segments() const;

 private:
  std::shared_ptr<PagePool> pool_;
  std::vector<std::uint32_t> pages_;
};

using DeviceBytes = std::shared_ptr<const DevicePages>;

// Memory of a model's device, allocated once, in pages of one size: what comes and goes leaves no gaps. Used by one
// thread; pages that are taken again are written in the order of the model's stream.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // Pages of at most a quarter of a megabyte, of which some hold `part` bytes with little to spare. Throws Error if the
  // device does not have so much memory.
  PagePool(const decode::Runtime& runtime, std::uint64_t bytes, std::size_t part);

  std::uint64_t bytes() const { return memory_.bytes(); }
  std::size_t page() const { return page_; }
  // Of pages that hold so many bytes.
  std::size_t rounded(std::size_t bytes) const { return (bytes + page_ - 1) / page_ * page_; }
  // Throws std::bad_alloc if fewer pages are free.
  DeviceBytes take(std::size_t bytes);

 private:
  friend class DevicePages;

  std::size_t page_;
  DeviceMemory memory_;
  std::vector<std::uint32_t> free_;
};

}  // namespace thalweg::engine
