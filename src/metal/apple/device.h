#pragma once

// The Metal device, its library of kernels and its queues. For Objective-C++ alone.

#import <Metal/Metal.h>

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#import "metal/apple/residency.h"
#include "metal/launch.h"

namespace thalweg::metal {

struct Signal {
  id<MTLSharedEvent> event;
  std::uint64_t value = 0;
};

// The default device, created once. `problem` is empty if it can be used.
class AppleDevice {
 public:
  static AppleDevice& instance();

  const std::string& problem() const { return problem_; }
  id<MTLDevice> device() const { return device_; }

  // The pipeline of the launch's kernel and constants, compiled at the first call. Throws thalweg::Error.
  id<MTLComputePipelineState> pipeline(std::string_view operation, const Launch& launch);

  // The stream's queue, or the library's own.
  id<MTLCommandQueue> queue(const Stream& stream) const;

  // Memory that stays where it is until release(): wrapped once, and resident where the system has sets for it.
  void keep(const void* data, std::size_t bytes);
  void release(const void* data) noexcept;

  // A buffer of private storage, for which [addresses, addresses + bytes) stands until release(). False if the device
  // does not give it.
  bool allocate_private(const void* addresses, std::size_t bytes);

  // The buffer of memory: that of keep() or allocate_private(), or else one of host memory, of the whole pages around
  // [data, data + bytes), not copied. Nil: neither. `offset` says where data is in it. The command buffer keeps it
  // alive.
  id<MTLBuffer> share(const void* data, std::size_t bytes, std::size_t& offset);

  // Makes a command buffer wait for all earlier ones of its queue, and returns the signal that it must encode at its
  // end. Metal does not order them by itself: it cannot see that two buffers wrap the same memory.
  Signal order(id<MTLCommandQueue> queue, id<MTLCommandBuffer> buffer);
  // The last command buffer of a queue that was ordered; event nil: none.
  Signal last(id<MTLCommandQueue> queue);

 private:
  struct Kept {
    id<MTLBuffer> buffer;
    std::uintptr_t begin = 0;  // of its pages
    std::uintptr_t end = 0;    // of the data
    bool is_private = false;
  };

  AppleDevice();
  ~AppleDevice();
  id<MTLBuffer> wrap(const void* data, std::size_t bytes, std::uintptr_t& begin) const;
  void open_archive();
  id<MTLComputePipelineState> make_pipeline(id<MTLFunction> function, NSError** error);

  std::string problem_;
  id<MTLDevice> device_;
  id<MTLLibrary> library_;
  id<MTLCommandQueue> queue_;
  std::mutex mutex_;
  std::unordered_map<std::string, id<MTLComputePipelineState>> pipelines_;
  std::unordered_map<const void*, Signal> last_signals_;  // by queue
  std::map<std::uintptr_t, Kept> kept_;                   // by address
  ResidencySet resident_;                                 // of kept_
  id<MTLBinaryArchive> archive_;                          // of pipelines, kept from run to run; nil: none
  NSURL* archive_file_;
  bool archive_grew_ = false;
};

// A command buffer of the library's own queue, for launches of several operations.
std::unique_ptr<Encoder> make_command_buffer();

// While one exists, its thread's command buffers are kept, so that their times can be read.
class CommandRecorder {
 public:
  CommandRecorder();
  ~CommandRecorder();
  CommandRecorder(const CommandRecorder&) = delete;
  CommandRecorder& operator=(const CommandRecorder&) = delete;

  static void add(id<MTLCommandBuffer> buffer);
  // From the start of the first to the end of the last, in seconds; waits for it.
  double seconds() const;

 private:
  NSMutableArray<id<MTLCommandBuffer>>* buffers_;
};

}  // namespace thalweg::metal
