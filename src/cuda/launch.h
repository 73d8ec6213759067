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
  int shared_bytes = 0;  // shared memory of a multiprocessor
  // Kernels run as the machine code of 9.0, and not as what the driver made of the PTX of 8.0.
  bool runs_hopper_code = false;
};
const DeviceProperties& properties(int device);

// Adds an attribute to a launch of a kernel that begins with wait_for_launch_order() (device/launch_order.h): it may be
// sent to the device before the kernel ahead of it has ended. Only where the machine code is that of 9.0: other code
// does not wait.
inline void launch_early(cudaLaunchConfig_t& config, cudaLaunchAttribute* attributes, const DeviceProperties& device) {
  if (!device.runs_hopper_code) return;
  cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
}

// Lets a kernel use up to `bytes` of shared memory per block, on the current device.
void allow_shared_memory(const void* kernel, std::size_t bytes, std::string_view operation);

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                  const DeviceProperties& device, cudaStream_t stream, std::string_view operation,
                  Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  launch_early(config, &attribute, device);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), operation);
}

}  // namespace thalweg::cu
