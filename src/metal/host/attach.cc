// The executor as a Metal backend. Its device memory is host memory, as on Apple's systems.

#include "metal/host/attach.h"
#include "core/device_functions.h"

#include <chrono>
#include <cstring>
#include <new>

#include "metal/backend.h"
#include "metal/host/executor.h"
#include "metal/host/programs.h"
#include "metal/kernels.h"

namespace thalweg::metal {
namespace {

constexpr std::align_val_t kAlignment{256};

void* allocate(Device, std::size_t bytes) { return ::operator new(bytes, kAlignment); }
void release(Device, void* memory) noexcept { ::operator delete(memory, kAlignment); }
void copy(const Stream&, void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void synchronize(const Stream&) {}

std::vector<double> time(Device device, const std::function<void(const Stream&)>& enqueue, int replays) {
  std::vector<double> seconds;
  for (int i = 0; i < replays; ++i) {
    const auto start = std::chrono::steady_clock::now();
    enqueue(Stream{device, 0, nullptr});
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

constexpr DeviceFunctions kFunctions{allocate, release, copy, synchronize, time};

}  // namespace

std::unique_ptr<Encoder> make_encoder(std::string_view operation, const Stream&) {
  return std::make_unique<ExecutorEncoder>(operation);
}

void attach_executor() {
  static const Backend instance = [] {
    add_programs(kPrograms, kNumPrograms);
    Backend result{DeviceType::kMetal, "", {}, nullptr, nullptr, &kFunctions, "executed on the host"};
    add_kernels(result);
    return result;
  }();
  set_backend(instance);
}

}  // namespace thalweg::metal
