// The backend on Apple's systems.

#include "metal/backend.h"
#include "core/device_functions.h"

#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string>

#import "metal/apple/device.h"
#include "metal/device_stream.h"
#include "metal/kernels.h"
#include "metal/private_memory.h"
#include "thalweg/error.h"

namespace thalweg::metal {
namespace {

void* allocate(Device, std::size_t bytes) {
  void* addresses = reserve_addresses(bytes);
  if (!AppleDevice::instance().allocate_private(addresses, bytes)) {
    release_addresses(addresses, bytes);
    throw Error("DeviceMemory", "bytes",
                "at most " + std::to_string(AppleDevice::instance().device().maxBufferLength) +
                    " in a buffer of Metal's, and what the device has free",
                std::to_string(bytes));
  }
  note_allocation(addresses, bytes, Storage::kPrivate);
  return addresses;
}

void release(Device, void* memory) noexcept {
  const std::size_t bytes = forget_allocation(memory);
  AppleDevice::instance().release(memory);
  release_addresses(memory, bytes);
}

// Whole pages: a Metal buffer that wraps host memory begins and ends on a page.
void* allocate_pinned(Device, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(getpagesize());
  void* memory = std::aligned_alloc(page, (bytes + page - 1) / page * page);
  if (memory == nullptr) throw std::bad_alloc();
  AppleDevice::instance().keep(memory, bytes);
  note_allocation(memory, bytes, Storage::kShared);
  return memory;
}

void release_pinned(void* memory) noexcept {
  forget_allocation(memory);
  AppleDevice::instance().release(memory);
  std::free(memory);
}

// Command buffers of a queue finish in order.
void synchronize(const Stream& stream) {
  if (DeviceStream* own = DeviceStream::find(stream)) return own->finish();
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

std::vector<double> time(Device device, const std::function<void(const Stream&)>& enqueue, int replays) {
  std::vector<double> seconds;
  for (int i = 0; i < replays; ++i) {
    const CommandRecorder recorder;
    enqueue(Stream{device, 0, nullptr});
    seconds.push_back(recorder.seconds());
  }
  return seconds;
}

// Command buffers of models: those of the library's own queue, numbered by its event.
std::uint64_t committed() {
  AppleDevice& device = AppleDevice::instance();
  return device.last(device.queue({})).value;
}

void wait_for(std::uint64_t number) {
  @autoreleasepool {
    AppleDevice& device = AppleDevice::instance();
    const Signal last = device.last(device.queue({}));
    if (last.event == nil || last.event.signaledValue >= number) return;
    static MTLSharedEventListener* listener = [[MTLSharedEventListener alloc] init];
    dispatch_semaphore_t done = dispatch_semaphore_create(0);
    [last.event notifyListener:listener
                       atValue:number
                         block:^(id<MTLSharedEvent>, std::uint64_t) {
                           dispatch_semaphore_signal(done);
                         }];
    dispatch_semaphore_wait(done, DISPATCH_TIME_FOREVER);
  }
}

constexpr CommandBuffers kCommandBuffers{make_command_buffer, committed, wait_for};

// What the system recommends, less what this process has; mapped weights count when they are used.
std::size_t free_memory(Device) {
  id<MTLDevice> device = AppleDevice::instance().device();
  const auto recommended = static_cast<std::size_t>(working_set(device));
  const auto taken = static_cast<std::size_t>(device.currentAllocatedSize);
  return recommended > taken ? recommended - taken : 0;
}

const ResidentFunctions& resident_functions() {
  static const ResidentFunctions functions = [] {
    ResidentFunctions result = stream_functions();
    result.name = [](Device) { return std::string(AppleDevice::instance().device().name.UTF8String); };
    result.free_memory = free_memory;
    result.create_stream = [](Device) -> void* { return new DeviceStream(kCommandBuffers); };
    result.destroy_stream = [](Device, void* stream) noexcept { delete static_cast<DeviceStream*>(stream); };
    result.allocate_pinned = allocate_pinned;
    result.release_pinned = release_pinned;
    result.map_host = [](Device, const void* memory, std::size_t bytes) {
      AppleDevice::instance().keep(memory, bytes);
    };
    result.unmap_host = [](Device, const void* memory) noexcept { AppleDevice::instance().release(memory); };
    result.takes_drafts = true;
    result.only_if_named = true;  // no model has run on an Apple GPU yet
    return result;
  }();
  return functions;
}

const DeviceFunctions& device_functions() {
  static const DeviceFunctions functions{allocate, release, copy_and_wait,        synchronize,
                                         time,     nullptr, &resident_functions()};
  return functions;
}

}  // namespace

const Backend& backend() {
  static const Backend instance = [] {
    Backend result{
        DeviceType::kMetal, AppleDevice::instance().problem(), {}, nullptr, nullptr, &device_functions(), ""};
    add_kernels(result);
    return result;
  }();
  return instance;
}

}  // namespace thalweg::metal
