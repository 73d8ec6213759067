#include "engine/device_pages.h"

#include <new>
#include <numeric>
#include <utility>

namespace thalweg::engine {
namespace {

constexpr std::size_t kMostPage = std::size_t{256} << 10;
constexpr std::size_t kAlignment = 4096;

std::size_t page_of(std::size_t part) {
  if (part == 0) return kMostPage;
  const std::size_t pages = (part + kMostPage - 1) / kMostPage;
  return ((part + pages - 1) / pages + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

DevicePages::DevicePages(std::shared_ptr<PagePool> pool, std::vector<std::uint32_t> pages)
    : pool_(std::move(pool)), pages_(std::move(pages)) {}

// The pool has room for all of its pages: nothing is allocated.
DevicePages::~DevicePages() { pool_->free_.insert(pool_->free_.end(), pages_.begin(), pages_.end()); }

std::vector<decode::MemorySegment> DevicePages::segments() const {
  std::vector<decode::MemorySegment> all;
  all.reserve(pages_.size());
  auto* const memory = static_cast<std::byte*>(pool_->memory_.data());
  for (const std::uint32_t page : pages_) all.push_back({memory + page * pool_->page_, pool_->page_});
  return all;
}

PagePool::PagePool(const decode::Runtime& runtime, std::uint64_t bytes, std::size_t part)
    : page_(page_of(part)), memory_(runtime.device(), bytes / page_ * page_), free_(bytes / page_) {
  std::iota(free_.rbegin(), free_.rend(), 0U);  // the first page is taken first
}

DeviceBytes PagePool::take(std::size_t bytes) {
  const std::size_t count = rounded(bytes) / page_;
  if (count > free_.size()) throw std::bad_alloc();
  std::vector<std::uint32_t> pages(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  auto taken = std::make_shared<const DevicePages>(shared_from_this(), std::move(pages));
  free_.resize(free_.size() - count);
  return taken;
}

}  // namespace thalweg::engine
