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

// Launches a kernel that begins, as far as wait_for_previous_kernel() (device/async_copy.h), while the one before it in
// the stream is still running. Below compute capability 9.0 an ordinary launch.
template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                  bool early, std::string_view operation, Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), operation);
}

}  // namespace thalweg::cu
