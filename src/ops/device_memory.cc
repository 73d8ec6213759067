#include "thalweg/device_memory.h"

#include <cstring>
#include <new>
#include <utility>

#include "core/device_functions.h"
#include "ops/backends.h"
#include "thalweg/error.h"

namespace thalweg {
namespace {

constexpr std::align_val_t kAlignment{256};

// Null for the CPU.
const DeviceFunctions* functions_of(Device device, std::string_view operation) {
  if (device.type == DeviceType::kCpu) return nullptr;
  const Backend& chosen = backend(device.type);
  if (!chosen.unavailable.empty()) throw Error(operation, "device", "an available backend", chosen.unavailable);
  return chosen.device;
}

void copy(const Stream& stream, void* to, const void* from, std::size_t bytes, std::string_view operation) {
  if (bytes == 0) return;
  if (const DeviceFunctions* functions = functions_of(stream.device, operation)) {
    functions->copy(stream, to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

DeviceMemory::DeviceMemory(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {
  const DeviceFunctions* functions = functions_of(device, "DeviceMemory");
  if (bytes == 0) return;
  data_ = functions != nullptr ? functions->allocate(device, bytes) : ::operator new(bytes, kAlignment);
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  if (device_.type == DeviceType::kCpu) {
    ::operator delete(data_, kAlignment);
  } else {
    backend(device_.type).device->release(device_, data_);
  }
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void copy_to_device(const Stream& stream, void* device_memory, const void* host_memory, std::size_t bytes) {
  copy(stream, device_memory, host_memory, bytes, "copy_to_device");
}

void copy_to_host(const Stream& stream, void* host_memory, const void* device_memory, std::size_t bytes) {
  copy(stream, host_memory, device_memory, bytes, "copy_to_host");
}

void synchronize(const Stream& stream) {
  if (const DeviceFunctions* functions = functions_of(stream.device, "synchronize")) functions->synchronize(stream);
}

}  // namespace thalweg
