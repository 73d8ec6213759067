#import "metal/apple/device.h"

#include <unistd.h>

#include "metal/apple/source.h"
#include "thalweg/error.h"

namespace thalweg::metal {
namespace {

std::string text_of(NSError* error) {
  return error == nil ? "no reason given" : std::string(error.localizedDescription.UTF8String);
}

thread_local CommandRecorder* recorder = nullptr;

}  // namespace

AppleDevice& AppleDevice::instance() {
  static AppleDevice device;
  return device;
}

AppleDevice::AppleDevice() {
  @autoreleasepool {
    device_ = MTLCreateSystemDefaultDevice();
    if (device_ == nil) {
      problem_ = "this machine has no Metal device";
      return;
    }
    // Simdgroup matrices come with the seventh family, bfloat with Metal 3.1.
    if (![device_ supportsFamily:MTLGPUFamilyApple7] || ![device_ supportsFamily:MTLGPUFamilyMetal3]) {
      problem_ = std::string(device_.name.UTF8String) + " has no simdgroup matrices";
      return;
    }
    MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
    options.languageVersion = MTLLanguageVersion3_1;
    options.fastMathEnabled = NO;  // the error bounds assume IEEE arithmetic as written
    NSError* error = nil;
    library_ = [device_ newLibraryWithSource:[NSString stringWithUTF8String:kKernelSource]
                                     options:options
                                       error:&error];
    if (library_ == nil) {
      problem_ = "the kernels do not compile: " + text_of(error);
      return;
    }
    queue_ = [device_ newCommandQueue];
  }
}

id<MTLComputePipelineState> AppleDevice::pipeline(std::string_view operation, const Launch& launch) {
  std::string key(launch.kernel);
  for (int i = 0; i < launch.num_constants; ++i) {
    const FunctionConstantValue& constant = launch.constants[static_cast<std::size_t>(i)];
    key.append(" ").append(constant.name).append("=").append(std::to_string(constant.value));
  }
  const std::lock_guard lock(mutex_);
  if (const auto known = pipelines_.find(key); known != pipelines_.end()) return known->second;
  MTLFunctionConstantValues* values = [[MTLFunctionConstantValues alloc] init];
  for (int i = 0; i < launch.num_constants; ++i) {
    const FunctionConstantValue& constant = launch.constants[static_cast<std::size_t>(i)];
    NSString* name = [NSString stringWithUTF8String:std::string(constant.name).c_str()];
    [values setConstantValue:&constant.value type:MTLDataTypeInt withName:name];
  }
  NSError* error = nil;
  NSString* name = [NSString stringWithUTF8String:std::string(launch.kernel).c_str()];
  id<MTLFunction> function = [library_ newFunctionWithName:name constantValues:values error:&error];
  id<MTLComputePipelineState> pipeline = nil;
  if (function != nil) pipeline = [device_ newComputePipelineStateWithFunction:function error:&error];
  if (pipeline == nil) throw Error(operation, "kernel " + key, "a pipeline", text_of(error));
  pipelines_.emplace(key, pipeline);
  return pipeline;
}

id<MTLCommandQueue> AppleDevice::queue(const Stream& stream) const {
  return stream.native != nullptr ? (__bridge id<MTLCommandQueue>)stream.native : queue_;
}

id<MTLBuffer> AppleDevice::share(const void* data, std::size_t bytes, std::size_t& offset) const {
  const auto page = static_cast<std::uintptr_t>(getpagesize());
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = address / page * page;
  const std::uintptr_t end = (address + bytes + page - 1) / page * page;
  offset = address - begin;
  return [device_ newBufferWithBytesNoCopy:reinterpret_cast<void*>(begin)
                                    length:end - begin
                                   options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked
                               deallocator:nil];
}

Signal AppleDevice::order(id<MTLCommandQueue> queue, id<MTLCommandBuffer> buffer) {
  const std::lock_guard lock(mutex_);
  Signal& last = last_signals_[(__bridge const void*)queue];
  if (last.event == nil) last.event = [device_ newEvent];
  if (last.value > 0) [buffer encodeWaitForEvent:last.event value:last.value];
  ++last.value;
  return last;
}

CommandRecorder::CommandRecorder() : buffers_([NSMutableArray array]) { recorder = this; }
CommandRecorder::~CommandRecorder() { recorder = nullptr; }

void CommandRecorder::add(id<MTLCommandBuffer> buffer) {
  if (recorder != nullptr) [recorder->buffers_ addObject:buffer];
}

double CommandRecorder::seconds() const {
  if (buffers_.count == 0) return 0.0;
  [buffers_.lastObject waitUntilCompleted];
  return buffers_.lastObject.GPUEndTime - buffers_.firstObject.GPUStartTime;
}

}  // namespace thalweg::metal
