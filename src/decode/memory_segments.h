#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "core/device_functions.h"

namespace thalweg::decode {

// A contiguous range of the memory of the device that a model runs on.
struct MemorySegment {
  std::byte* data;
  std::size_t bytes;
};

// Adds what copies the bytes of the segments `from`, one after the other, into `to`, as far as both have some.
inline void add_copies(std::span<const MemorySegment> to, std::span<const MemorySegment> from,
                       std::vector<MemoryCopy>& copies) {
  std::size_t done_to = 0;  // bytes of to.front()
  std::size_t done_from = 0;
  while (!to.empty() && !from.empty()) {
    const std::size_t bytes = std::min(to.front().bytes - done_to, from.front().bytes - done_from);
    if (bytes > 0) copies.push_back({to.front().data + done_to, from.front().data + done_from, bytes});
    done_to += bytes;
    done_from += bytes;
    if (done_to == to.front().bytes) {
      to = to.subspan(1);
      done_to = 0;
    }
    if (done_from == from.front().bytes) {
      from = from.subspan(1);
      done_from = 0;
    }
  }
}

inline std::vector<MemorySegment> first_bytes(std::vector<MemorySegment> segments, std::size_t bytes) {
  std::size_t count = 0;
  for (; count < segments.size() && bytes > 0; ++count) {
    segments[count].bytes = std::min(segments[count].bytes, bytes);
    bytes -= segments[count].bytes;
  }
  segments.resize(count);
  return segments;
}

}  // namespace thalweg::decode
