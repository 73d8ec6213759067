#pragma once

#include <algorithm>
#include <vector>

#include "thalweg/device_memory.h"

namespace thalweg::app {

// `count` elements on the device: one block of values over and over.
template <class T>
DeviceMemory repeated(const Stream& stream, const std::vector<T>& block, std::int64_t count) {
  DeviceMemory memory(stream.device, static_cast<std::size_t>(count) * sizeof(T));
  const auto size = static_cast<std::int64_t>(block.size());
  for (std::int64_t done = 0; done < count; done += size) {
    copy_to_device(stream, static_cast<T*>(memory.data()) + done, block.data(),
                   static_cast<std::size_t>(std::min(size, count - done)) * sizeof(T));
  }
  return memory;
}

}  // namespace thalweg::app
