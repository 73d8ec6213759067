#pragma once

// Device memory filled with one block of values over and over: timings depend on the kind of the values alone.

#include <algorithm>
#include <vector>

#include "cases/blocks.h"
#include "cases/random.h"
#include "thalweg/device_memory.h"

namespace thalweg::app {

// Writes `count` elements.
template <class T>
void repeat(const Stream& stream, const std::vector<T>& block, std::int64_t count, void* device_memory) {
  const auto size = static_cast<std::int64_t>(block.size());
  for (std::int64_t done = 0; done < count; done += size) {
    copy_to_device(stream, static_cast<T*>(device_memory) + done, block.data(),
                   static_cast<std::size_t>(std::min(size, count - done)) * sizeof(T));
  }
}

// `count` elements.
template <class T>
DeviceMemory repeated(const Stream& stream, const std::vector<T>& block, std::int64_t count) {
  DeviceMemory memory(stream.device, static_cast<std::size_t>(count) * sizeof(T));
  repeat(stream, block, count, memory.data());
  return memory;
}

// `bytes` of weights: valid blocks of a format, or floats.
inline DeviceMemory repeated_blocks(const Stream& stream, DType type, std::int64_t bytes) {
  constexpr std::int64_t kPoolWeights = std::int64_t{1} << 22U;
  cases::Random random(11);
  std::vector<unsigned char> pool(static_cast<std::size_t>(bytes_of(type, kPoolWeights)));
  cases::fill_blocks(type, cases::BlockScales::kOrdinary, random, pool.data(), kPoolWeights);
  return repeated(stream, pool, bytes);
}

}  // namespace thalweg::app
