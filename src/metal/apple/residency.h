#pragma once

// What stays, in reach of the GPU. For Objective-C++ alone.

#import <Metal/Metal.h>

#include <cstdint>

namespace thalweg::metal {

// Bytes that the system recommends to keep in use: of a Mac's device, or what an app of iOS may still take.
std::uint64_t working_set(id<MTLDevice> device);

// A residency set, where the system and the headers have them (macOS 15, iOS 18): command buffers of its queues find
// its buffers resident. Elsewhere it does nothing, and each command buffer makes resident what it binds. Not for
// several threads at once.
class ResidencySet {
 public:
  void create(id<MTLDevice> device);
  // A buffer that would take the set beyond the device's working set is left out.
  void add(id<MTLBuffer> buffer);
  void remove(id<MTLBuffer> buffer) noexcept;
  void attach(id<MTLCommandQueue> queue);

 private:
  [[maybe_unused]] id set_ = nil;  // an MTLResidencySet, or nil
  [[maybe_unused]] std::uint64_t bytes_ = 0;
  [[maybe_unused]] std::uint64_t most_bytes_ = 0;
};

}  // namespace thalweg::metal
