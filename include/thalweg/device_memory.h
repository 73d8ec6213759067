#pragma once

// Memory of a device, and copies to and from it, for callers without an allocator of their own. The operations never
// need it: they take any memory of their stream's device. Any thread may call these functions; a DeviceMemory is
// created, moved and destroyed by one thread at a time.

#include <cstddef>

#include "thalweg/api.h"
#include "thalweg/device.h"

THALWEG_API_BEGIN
namespace thalweg {

// A block of memory on one device, aligned to 256 bytes. On the CPU it is host memory; elsewhere only copies reach it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Throws thalweg::Error if the device is absent or does not have enough free memory.
  DeviceMemory(Device device, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  Workspace workspace() const { return {data_, bytes_}; }

 private:
  Device device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Copies between the host and the stream's device, or within the device, after all work enqueued on the stream. Both
// return when the copy is complete. They throw thalweg::Error if it fails.
void copy_to_device(const Stream& stream, void* device_memory, const void* host_memory, std::size_t bytes);
void copy_to_host(const Stream& stream, void* host_memory, const void* device_memory, std::size_t bytes);

// Waits until all work enqueued on the stream is complete. Throws thalweg::Error if it failed.
void synchronize(const Stream& stream);

}  // namespace thalweg
THALWEG_API_END
