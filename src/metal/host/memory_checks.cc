#include "metal/host/memory_checks.h"

#include <algorithm>
#include <cstring>

namespace thalweg::metal {
MemoryChecks::MemoryChecks()
    : threadgroup_storage_(kMaxThreadgroupBytes + 64),
      threadgroup_memory_(threadgroup_storage_.data()),
      threadgroup_cells_(kMaxThreadgroupBytes / kCellBytes) {
  while (reinterpret_cast<std::uintptr_t>(threadgroup_memory_) % 64 != 0) ++threadgroup_memory_;
}

void MemoryChecks::reset() {
  pages_.clear();
  page_cache_ = {};
  std::fill(threadgroup_cells_.begin(), threadgroup_cells_.end(), Cell{});
}

void MemoryChecks::poison_threadgroup_memory() { std::memset(threadgroup_memory_, 0xFF, threadgroup_bytes_); }

void MemoryChecks::set_buffers(std::vector<std::pair<const void*, std::size_t>> buffers, unsigned writable,
                               const void* parameters, std::size_t parameter_bytes) {
  regions_.clear();
  last_region_ = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto begin = reinterpret_cast<std::uintptr_t>(buffers[i].first);
    const bool may_write = (writable >> i & 1U) != 0;
    if (buffers[i].second > 0) {
      regions_.push_back(
          {begin, begin + buffers[i].second, true, may_write, AddressSpace::kDevice, static_cast<int>(i)});
    }
  }
  // Views of one tensor overlap: merge their regions.
  std::sort(regions_.begin(), regions_.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
  std::vector<Region> merged;
  for (const Region& region : regions_) {
    if (!merged.empty() && region.begin < merged.back().end) {
      merged.back().end = std::max(merged.back().end, region.end);
      merged.back().writable |= region.writable;
    } else {
      merged.push_back(region);
    }
  }
  regions_ = std::move(merged);
  const auto begin = reinterpret_cast<std::uintptr_t>(parameters);
  regions_.push_back({begin, begin + parameter_bytes, true, false, AddressSpace::kConstant, 0});
}

const MemoryChecks::Region* MemoryChecks::find(std::uintptr_t begin, std::uintptr_t end) {
  const auto inside = [&](const Region& region) { return begin >= region.begin && end <= region.end; };
  if (last_region_ < regions_.size() && inside(regions_[last_region_])) return &regions_[last_region_];
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    if (!inside(regions_[i])) continue;
    last_region_ = i;
    return &regions_[i];
  }
  return nullptr;
}

std::string MemoryChecks::outside(std::uintptr_t begin, std::size_t bytes, bool write) const {
  std::string text = std::string(write ? "write" : "read") + " of " + std::to_string(bytes) + " bytes out of bounds";
  const auto local = reinterpret_cast<std::uintptr_t>(threadgroup_memory_);
  if (begin - local < 2 * kMaxThreadgroupBytes) {
    return text + ": byte " + std::to_string(begin - local) + " of " + std::to_string(threadgroup_bytes_) +
           " of threadgroup memory";
  }
  std::uintptr_t nearest = 4096;
  std::string where;
  for (const Region& region : regions_) {
    const bool behind = begin >= region.end;
    const std::uintptr_t distance = behind ? begin - region.end : region.begin - begin;
    if ((!behind && begin >= region.begin) || distance >= nearest) continue;
    nearest = distance;
    where = ", " + std::to_string(distance) + " bytes " + (behind ? "behind the end of" : "before") + " buffer " +
            std::to_string(region.buffer);
  }
  if (!where.empty()) return text + where;
  return text + (begin < 4096 ? ", at a null pointer" : ", in no buffer of the kernel");
}

MemoryChecks::Cell& MemoryChecks::device_cell(std::uintptr_t address) {
  const std::uintptr_t number = address / (kCellBytes * kPageCells);
  auto& cached = page_cache_[number % page_cache_.size()];
  if (cached.first != number || cached.second == nullptr) {
    std::unique_ptr<Page>& page = pages_[number];
    if (page == nullptr) page = std::make_unique<Page>();
    cached = {number, page.get()};
  }
  return (*cached.second)[address / kCellBytes % kPageCells];
}

// Whether barriers order the access that left the mark before the current one.
bool MemoryChecks::ordered(const Mark& mark, const Accessor& now, bool device) {
  if (mark.interval < now.launch_begin) return true;          // no mark, or a launch that has finished
  if (mark.interval < now.threadgroup_begin) return !device;  // another threadgroup
  if (mark.interval < (device ? now.device_interval : now.threadgroup_interval)) return true;
  if (mark.thread == now.thread) return true;
  return mark.thread / 32 == now.thread / 32 && mark.simd_epoch < now.simd_epoch;
}

std::string MemoryChecks::mark(Cell& cell, bool write, bool atomic, const Accessor& now, bool device) {
  const auto race = [&](const char* what, const Mark& mark) {
    std::string text = std::string("data race: ") + what + " thread " + std::to_string(mark.thread);
    if (mark.interval < now.threadgroup_begin) text += " of another threadgroup";
    return text + ", with no barrier between";
  };
  const bool both_atomic = atomic && cell.atomic;
  if (!both_atomic && !ordered(cell.write, now, device)) {
    return race(write ? "written before by" : "read of what was written by", cell.write);
  }
  if (write) {
    for (const Mark* read : {&cell.read, &cell.other_read}) {
      if (!both_atomic && !ordered(*read, now, device)) return race("written after it was read by", *read);
    }
    cell.write = Mark(now);
    cell.atomic = atomic;
  } else {
    // Keeps a reader that may still be concurrent, and the latest other one.
    (ordered(cell.read, now, device) ? cell.read : cell.other_read) = Mark(now);
  }
  return {};
}

std::string MemoryChecks::check(const void* address, std::size_t bytes, bool write, bool atomic, const Accessor& now,
                                AddressSpace& space) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto local = reinterpret_cast<std::uintptr_t>(threadgroup_memory_);
  if (begin % bytes != 0) return "an access of " + std::to_string(bytes) + " bytes that is not aligned to them";
  if (begin - local < kMaxThreadgroupBytes) {
    space = AddressSpace::kThreadgroup;
    if (begin + bytes > local + threadgroup_bytes_) return outside(begin, bytes, write);
    for (std::size_t cell = (begin - local) / kCellBytes; cell <= (begin - local + bytes - 1) / kCellBytes; ++cell) {
      Cell& state = threadgroup_cells_[cell];
      if (!write && state.write.interval < now.threadgroup_begin) {
        return "read of uninitialized threadgroup memory, byte " + std::to_string(begin - local);
      }
      std::string problem = mark(state, write, atomic, now, false);
      if (!problem.empty()) return problem + " (byte " + std::to_string(begin - local) + " of threadgroup memory)";
    }
    return {};
  }
  const Region* region = find(begin, begin + bytes);
  if (region == nullptr) return outside(begin, bytes, write);
  space = region->space;
  if (write && !region->writable) return "write to a buffer that the kernel may only read";
  if (!region->writable) return {};
  for (std::uintptr_t at = begin / kCellBytes; at <= (begin + bytes - 1) / kCellBytes; ++at) {
    std::string problem = mark(device_cell(at * kCellBytes), write, atomic, now, true);
    if (!problem.empty()) {
      return problem + " (byte " + std::to_string(begin - region->begin) + " of buffer " +
             std::to_string(region->buffer) + ")";
    }
  }
  return {};
}

}  // namespace thalweg::metal
