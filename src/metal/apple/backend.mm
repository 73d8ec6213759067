// The backend on Apple's systems.

#include "metal/backend.h"
#include "core/device_functions.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

#import "metal/apple/device.h"
#include "metal/kernels.h"

namespace thalweg::metal {
namespace {

// Whole pages: a Metal buffer that wraps host memory begins and ends on a page.
void* allocate(Device, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(getpagesize());
  void* memory = std::aligned_alloc(page, (bytes + page - 1) / page * page);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(Device, void* memory) noexcept { std::free(memory); }

// Command buffers of a queue finish in order.
void synchronize(const Stream& stream) {
  @autoreleasepool {
    AppleDevice& device = AppleDevice::instance();
    id<MTLCommandQueue> queue = device.queue(stream);
    id<MTLCommandBuffer> last = [queue commandBuffer];
    const Signal signal = device.order(queue, last);
    [last encodeSignalEvent:signal.event value:signal.value];
    [last commit];
    [last waitUntilCompleted];
  }
}

void copy(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  synchronize(stream);
  std::memcpy(to, from, bytes);
}

std::vector<double> time(Device device, const std::function<void(const Stream&)>& enqueue, int replays) {
  std::vector<double> seconds;
  for (int i = 0; i < replays; ++i) {
    const CommandRecorder recorder;
    enqueue(Stream{device, 0, nullptr});
    seconds.push_back(recorder.seconds());
  }
  return seconds;
}

constexpr DeviceFunctions kFunctions{allocate, release, copy, synchronize, time, nullptr};

}  // namespace

const Backend& backend() {
  static const Backend instance = [] {
    Backend result{DeviceType::kMetal, AppleDevice::instance().problem(), {}, nullptr, nullptr, &kFunctions, ""};
    add_kernels(result);
    return result;
  }();
  return instance;
}

}  // namespace thalweg::metal
