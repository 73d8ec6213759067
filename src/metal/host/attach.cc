// The executor as a Metal backend. Its device memory is private storage, its pinned memory shared, as on Apple's
// systems.

#include "metal/host/attach.h"
#include "core/device_functions.h"

#include <unistd.h>

#include <chrono>
#include <new>

#include "metal/backend.h"
#include "metal/device_stream.h"
#include "metal/host/executor.h"
#include "metal/host/private_storage.h"
#include "metal/host/programs.h"
#include "metal/kernels.h"
#include "metal/private_memory.h"

namespace thalweg::metal {
namespace {

constexpr std::align_val_t kAlignment{256};

void* allocate(Device, std::size_t bytes) {
  void* memory = allocate_private(bytes);
  note_allocation(memory, bytes, Storage::kPrivate);
  return memory;
}
void release(Device, void* memory) noexcept {
  forget_allocation(memory);
  release_private(memory);
}
void* allocate_pinned(Device, std::size_t bytes) {
  void* memory = ::operator new(bytes, kAlignment);
  note_allocation(memory, bytes, Storage::kShared);
  return memory;
}
void release_pinned(void* memory) noexcept {
  forget_allocation(memory);
  ::operator delete(memory, kAlignment);
}
void synchronize(const Stream& stream) {
  if (DeviceStream* own = DeviceStream::find(stream)) own->finish();
}

std::vector<double> time(Device device, const std::function<void(const Stream&)>& enqueue, int replays) {
  std::vector<double> seconds;
  for (int i = 0; i < replays; ++i) {
    const auto start = std::chrono::steady_clock::now();
    enqueue(Stream{device, 0, nullptr});
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

// A launch has finished when its encoder returns.
constexpr CommandBuffers kCommandBuffers{
    [] { return std::unique_ptr<Encoder>(std::make_unique<ExecutorEncoder>("step")); }, [] { return std::uint64_t{0}; },
    [](std::uint64_t) {}};

const ResidentFunctions& resident_functions() {
  static const ResidentFunctions functions = [] {
    ResidentFunctions result = stream_functions();
    result.name = [](Device) { return std::string("executed on the host"); };
    result.free_memory = [](Device) {
      return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    };
    result.create_stream = [](Device) -> void* { return new DeviceStream(kCommandBuffers); };
    result.destroy_stream = [](Device, void* stream) noexcept { delete static_cast<DeviceStream*>(stream); };
    result.allocate_pinned = allocate_pinned;
    result.release_pinned = release_pinned;
    result.map_host = [](Device, const void*, std::size_t) {};
    result.unmap_host = [](Device, const void*) noexcept {};
    result.takes_drafts = true;
    result.only_if_named = true;
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

std::unique_ptr<Encoder> make_encoder(std::string_view operation, const Stream& stream) {
  if (DeviceStream* own = DeviceStream::find(stream)) return own->record(operation);
  return std::make_unique<ExecutorEncoder>(operation);
}

void attach_executor() {
  static const Backend instance = [] {
    add_programs(kPrograms, kNumPrograms);
    Backend result{DeviceType::kMetal, "", {}, nullptr, nullptr, &device_functions(), "executed on the host"};
    add_kernels(result);
    return result;
  }();
  set_backend(instance);
}

}  // namespace thalweg::metal
