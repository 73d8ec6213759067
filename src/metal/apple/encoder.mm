// Launches on a Metal device.

#import "metal/apple/device.h"
#include "metal/device_stream.h"
#include "thalweg/error.h"

namespace thalweg::metal {
namespace {

// That setBytes takes.
constexpr std::size_t kMostBytes = 4096;

class AppleEncoder final : public Encoder {
 public:
  AppleEncoder(std::string_view operation, const Stream& stream) : operation_(operation) {
    AppleDevice& device = AppleDevice::instance();
    id<MTLCommandQueue> queue = device.queue(stream);
    buffer_ = [queue commandBuffer];
    signal_ = device.order(queue, buffer_);
    // Launches may overlap, except for those with after_previous.
    encoder_ = [buffer_ computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
  }

  // Commits even after a failed launch: later runs of the queue wait for this one's event.
  ~AppleEncoder() override {
    [encoder_ endEncoding];
    [buffer_ encodeSignalEvent:signal_.event value:signal_.value];
    [buffer_ commit];
    CommandRecorder::add(buffer_);
  }

  void launch(const Launch& launch) override {
    const bool empty = launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0;
    if (launch.indirect_grid == nullptr && empty) return;
    @autoreleasepool {
      AppleDevice& device = AppleDevice::instance();
      id<MTLComputePipelineState> pipeline = device.pipeline(operation_, launch);
      if (pipeline.maxTotalThreadsPerThreadgroup < launch.threads) {
        throw Error(operation_, "kernel " + std::string(launch.kernel),
                    std::to_string(launch.threads) + " threads in a threadgroup",
                    std::to_string(pipeline.maxTotalThreadsPerThreadgroup));
      }
      if (launch.threadgroup_bytes > device.device().maxThreadgroupMemoryLength ||
          launch.parameter_bytes > kMostBytes) {
        throw Error(
            operation_, "kernel " + std::string(launch.kernel), "threadgroup memory and arguments of the device",
            std::to_string(launch.threadgroup_bytes) + " and " + std::to_string(launch.parameter_bytes) + " bytes");
      }
      if (launch.after_previous) [encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers];
      [encoder_ setComputePipelineState:pipeline];
      [encoder_ setBytes:launch.parameters length:launch.parameter_bytes atIndex:0];
      for (int i = 0; i < launch.num_buffers; ++i) bind(launch.buffers[static_cast<std::size_t>(i)], i + 1);
      if (launch.threadgroup_bytes > 0) [encoder_ setThreadgroupMemoryLength:launch.threadgroup_bytes atIndex:0];
      const MTLSize threads = MTLSizeMake(launch.threads, 1, 1);
      if (launch.indirect_grid == nullptr) {
        const MTLSize grid = MTLSizeMake(launch.grid[0], launch.grid[1], launch.grid[2]);
        [encoder_ dispatchThreadgroups:grid threadsPerThreadgroup:threads];
        return;
      }
      std::size_t offset = 0;
      id<MTLBuffer> grid = share(launch.indirect_grid, 3 * sizeof(std::uint32_t), offset);
      [encoder_ dispatchThreadgroupsWithIndirectBuffer:grid indirectBufferOffset:offset threadsPerThreadgroup:threads];
    }
  }

 private:
  id<MTLBuffer> share(const void* data, std::size_t bytes, std::size_t& offset) {
    id<MTLBuffer> buffer = AppleDevice::instance().share(data, bytes, offset);
    if (buffer == nil) {
      throw Error(operation_, "memory", "memory that Metal can share", std::to_string(bytes) + " bytes that it cannot");
    }
    return buffer;
  }

  void bind(const Buffer& memory, int index) {
    std::size_t offset = 0;
    id<MTLBuffer> buffer = memory.data == nullptr || memory.bytes == 0 ? nil : share(memory.data, memory.bytes, offset);
    [encoder_ setBuffer:buffer offset:offset atIndex:static_cast<NSUInteger>(index)];
  }

  std::string operation_;
  id<MTLCommandBuffer> buffer_;
  id<MTLComputeCommandEncoder> encoder_;
  Signal signal_;
};

}  // namespace

std::unique_ptr<Encoder> make_encoder(std::string_view operation, const Stream& stream) {
  if (DeviceStream* own = DeviceStream::find(stream)) return own->record(operation);
  return std::make_unique<AppleEncoder>(operation, stream);
}

std::unique_ptr<Encoder> make_command_buffer() { return std::make_unique<AppleEncoder>("step", Stream{}); }

}  // namespace thalweg::metal
