#pragma once

// Host code that all CUDA kernels share.

#include <cuda_runtime.h>

#include <optional>
#include <string_view>

#include "cuda/device.h"
#include "thalweg/device.h"
#include "thalweg/error.h"

namespace thalweg::cu {

// Throws thalweg::Error of `operation` if `error` is one.
void check(cudaError_t error, std::string_view operation);

// Makes the stream's device the thread's current one during its lifetime.
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

// Enables programmatic dependent launch of a kernel that calls pdl_wait() (common/pdl.h): its blocks may start before
// the kernel ahead of it in the stream has ended. Does nothing on a device without the capability.
inline void pdl_launch(cudaLaunchConfig_t& config, cudaLaunchAttribute* attributes, const DeviceProperties& device) {
  if (!device.programmatic_launch) return;
  cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
}

// Allows a kernel `bytes` of shared memory per block on the current device.
void allow_shared_memory(const void* kernel, std::size_t bytes, std::string_view operation);

// In clusters of blocks, if any are given; they need compute capability 9.0.
template <class... Parameters, class... Arguments>
void pdl_launch(void (*kernel)(Parameters...), dim3 grid, std::optional<dim3> cluster, dim3 block,
                std::size_t shared_bytes, const DeviceProperties& device, cudaStream_t stream,
                std::string_view operation, Arguments... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (cluster) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {cluster->x, cluster->y, cluster->z};
    config.numAttrs = 1;
  }
  pdl_launch(config, attributes, device);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), operation);
}

template <class... Parameters, class... Arguments>
void pdl_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                const DeviceProperties& device, cudaStream_t stream, std::string_view operation,
                Arguments... arguments) {
  pdl_launch(kernel, grid, std::nullopt, block, shared_bytes, device, stream, operation, arguments...);
}

}  // namespace thalweg::cu
