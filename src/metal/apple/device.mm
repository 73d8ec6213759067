#import "metal/apple/device.h"

#include <unistd.h>

#include <iterator>
#include <string_view>

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
    resident_.create(device_);
    open_archive();
  }
}

// Pipelines of earlier runs of this program on this GPU and system, whose names the file has.
void AppleDevice::open_archive() {
  NSFileManager* files = NSFileManager.defaultManager;
  NSURL* caches = [files URLsForDirectory:NSCachesDirectory inDomains:NSUserDomainMask].firstObject;
  if (caches == nil) return;
  NSURL* folder = [caches URLByAppendingPathComponent:@"thalweg" isDirectory:YES];
  if (![files createDirectoryAtURL:folder withIntermediateDirectories:YES attributes:nil error:nil]) return;
  const std::size_t source = std::hash<std::string_view>{}(kKernelSource);
  NSString* system = NSProcessInfo.processInfo.operatingSystemVersionString;
  NSString* name = [NSString stringWithFormat:@"%@-%lu-%zx.metalar", device_.name, system.hash, source];
  archive_file_ = [folder URLByAppendingPathComponent:name];
  MTLBinaryArchiveDescriptor* descriptor = [[MTLBinaryArchiveDescriptor alloc] init];
  descriptor.url = [archive_file_ checkResourceIsReachableAndReturnError:nil] ? archive_file_ : nil;
  archive_ = [device_ newBinaryArchiveWithDescriptor:descriptor error:nil];
  if (archive_ != nil || descriptor.url == nil) return;
  descriptor.url = nil;  // a damaged file is written anew
  archive_ = [device_ newBinaryArchiveWithDescriptor:descriptor error:nil];
}

AppleDevice::~AppleDevice() {
  @autoreleasepool {
    if (archive_grew_) [archive_ serializeToURL:archive_file_ error:nil];
  }
}

id<MTLComputePipelineState> AppleDevice::make_pipeline(id<MTLFunction> function, NSError** error) {
  MTLComputePipelineDescriptor* descriptor = [[MTLComputePipelineDescriptor alloc] init];
  descriptor.computeFunction = function;
  if (archive_ != nil) {
    descriptor.binaryArchives = @[ archive_ ];
    id<MTLComputePipelineState> known =
        [device_ newComputePipelineStateWithDescriptor:descriptor
                                               options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                            reflection:nil
                                                 error:nil];
    if (known != nil) return known;
    archive_grew_ |= [archive_ addComputePipelineFunctionsWithDescriptor:descriptor error:nil] == YES;
  }
  return [device_ newComputePipelineStateWithDescriptor:descriptor
                                                options:MTLPipelineOptionNone
                                             reflection:nil
                                                  error:error];
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
  if (function != nil) pipeline = make_pipeline(function, &error);
  if (pipeline == nil) throw Error(operation, "kernel " + key, "a pipeline", text_of(error));
  pipelines_.emplace(key, pipeline);
  return pipeline;
}

id<MTLCommandQueue> AppleDevice::queue(const Stream& stream) const {
  return stream.native != nullptr ? (__bridge id<MTLCommandQueue>)stream.native : queue_;
}

id<MTLBuffer> AppleDevice::wrap(const void* data, std::size_t bytes, std::uintptr_t& begin) const {
  const auto page = static_cast<std::uintptr_t>(getpagesize());
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  begin = address / page * page;
  const std::uintptr_t end = (address + bytes + page - 1) / page * page;
  return [device_ newBufferWithBytesNoCopy:reinterpret_cast<void*>(begin)
                                    length:end - begin
                                   options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked
                               deallocator:nil];
}

void AppleDevice::keep(const void* data, std::size_t bytes) {
  if (data == nullptr || bytes == 0) return;
  Kept kept;
  kept.buffer = wrap(data, bytes, kept.begin);
  if (kept.buffer == nil) return;  // larger than a buffer may be: its parts are wrapped when they are bound
  kept.end = reinterpret_cast<std::uintptr_t>(data) + bytes;
  const std::lock_guard lock(mutex_);
  Kept& known = kept_[reinterpret_cast<std::uintptr_t>(data)];
  resident_.remove(known.buffer);
  known = kept;
  resident_.add(kept.buffer);
}

bool AppleDevice::allocate_private(const void* addresses, std::size_t bytes) {
  Kept kept;
  kept.buffer = [device_ newBufferWithLength:bytes
                                     options:MTLResourceStorageModePrivate | MTLResourceHazardTrackingModeUntracked];
  if (kept.buffer == nil) return false;
  kept.begin = reinterpret_cast<std::uintptr_t>(addresses);
  kept.end = kept.begin + bytes;
  kept.is_private = true;
  const std::lock_guard lock(mutex_);
  kept_[kept.begin] = kept;
  resident_.add(kept.buffer);
  return true;
}

void AppleDevice::release(const void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto known = kept_.find(reinterpret_cast<std::uintptr_t>(data));
  if (known == kept_.end()) return;
  resident_.remove(known->second.buffer);
  kept_.erase(known);
}

id<MTLBuffer> AppleDevice::share(const void* data, std::size_t bytes, std::size_t& offset) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  {
    const std::lock_guard lock(mutex_);
    auto next = kept_.upper_bound(address);
    if (next != kept_.begin()) {
      const Kept& kept = std::prev(next)->second;
      if (address + bytes <= kept.end) {
        offset = address - kept.begin;
        return kept.buffer;
      }
      // Addresses without access cannot be wrapped.
      if (kept.is_private && address < kept.end) return nil;
    }
  }
  std::uintptr_t begin = 0;
  id<MTLBuffer> buffer = wrap(data, bytes, begin);
  offset = address - begin;
  return buffer;
}

Signal AppleDevice::order(id<MTLCommandQueue> queue, id<MTLCommandBuffer> buffer) {
  const std::lock_guard lock(mutex_);
  Signal& last = last_signals_[(__bridge const void*)queue];
  if (last.event == nil) {
    last.event = [device_ newSharedEvent];
    resident_.attach(queue);
  }
  if (last.value > 0) [buffer encodeWaitForEvent:last.event value:last.value];
  ++last.value;
  return last;
}

Signal AppleDevice::last(id<MTLCommandQueue> queue) {
  const std::lock_guard lock(mutex_);
  return last_signals_[(__bridge const void*)queue];
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
