#pragma once

// What the host code of the CUDA kernels shares.

#include <cuda_runtime.h>

#include <string_view>

#include "thalweg/device.h"
#include "thalweg/error.h"

namespace thalweg::cu {

// Throws thalweg::Error in the name of `operation`.
void check(cudaError_t error, std::string_view operation);

// Makes the stream's device the thread's current one for as long as it lives.
class CurrentDevice {
 public:
  CurrentDevice(const Stream& stream, std::string_view operation);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  int device_ = 0;
};

inline cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native); }

// Properties that kernels are chosen and sized by; asked for once per device.
struct DeviceProperties {
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
};
const DeviceProperties& properties(int device);

// Lets a kernel use up to `bytes` of shared memory per block, on the current device.
void allow_shared_memory(const void* kernel, std::size_t bytes, std::string_view operation);

}  // namespace thalweg::cu
