#import "metal/apple/residency.h"

#include <TargetConditionals.h>

#if TARGET_OS_IOS && !TARGET_OS_MACCATALYST
#include <os/proc.h>
#endif

#if __has_include(<Metal/MTLResidencySet.h>)
#import <Metal/MTLResidencySet.h>
#define THALWEG_RESIDENCY_SETS 1
#else
#define THALWEG_RESIDENCY_SETS 0
#endif

namespace thalweg::metal {

std::uint64_t working_set(id<MTLDevice> device) {
#if TARGET_OS_IOS && !TARGET_OS_MACCATALYST
  return device.currentAllocatedSize + os_proc_available_memory();
#else
  return device.recommendedMaxWorkingSetSize;
#endif
}

#if THALWEG_RESIDENCY_SETS

void ResidencySet::create(id<MTLDevice> device) {
  if (@available(macOS 15.0, iOS 18.0, *)) {
    MTLResidencySetDescriptor* descriptor = [[MTLResidencySetDescriptor alloc] init];
    descriptor.label = @"thalweg";
    set_ = [device newResidencySetWithDescriptor:descriptor error:nil];
    most_bytes_ = working_set(device);
  }
}

void ResidencySet::add(id<MTLBuffer> buffer) {
  if (@available(macOS 15.0, iOS 18.0, *)) {
    id<MTLResidencySet> set = set_;
    if (set == nil || bytes_ + buffer.length > most_bytes_ || [set containsAllocation:buffer]) return;
    [set addAllocation:buffer];
    [set commit];
    bytes_ += buffer.length;
  }
}

void ResidencySet::remove(id<MTLBuffer> buffer) noexcept {
  if (@available(macOS 15.0, iOS 18.0, *)) {
    id<MTLResidencySet> set = set_;
    if (set == nil || buffer == nil || ![set containsAllocation:buffer]) return;
    [set removeAllocation:buffer];
    [set commit];
    bytes_ -= buffer.length;
  }
}

void ResidencySet::attach(id<MTLCommandQueue> queue) {
  if (@available(macOS 15.0, iOS 18.0, *)) {
    id<MTLResidencySet> set = set_;
    if (set != nil) [queue addResidencySet:set];
  }
}

#else

void ResidencySet::create(id<MTLDevice>) {}
void ResidencySet::add(id<MTLBuffer>) {}
void ResidencySet::remove(id<MTLBuffer>) noexcept {}
void ResidencySet::attach(id<MTLCommandQueue>) {}

#endif

}  // namespace thalweg::metal
