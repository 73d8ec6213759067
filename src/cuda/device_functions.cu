#include "cuda/device_functions.h"

#include <array>
#include <mutex>
#include <string>

#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

void* allocate(Device device, std::size_t bytes) {
  const CurrentDevice current(Stream{device, 0, nullptr}, "DeviceMemory");
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error("DeviceMemory", "bytes", "at most the " + std::to_string(free) + " that the device has free",
                std::to_string(bytes));
  }
  check(error, "DeviceMemory");
  return memory;
}

// On its own device: elsewhere the call would make a context there first.
void release(Device device, void* memory) noexcept {
  int before = device.index;
  cudaGetDevice(&before);
  if (before != device.index) cudaSetDevice(device.index);
  cudaFree(memory);
  if (before != device.index) cudaSetDevice(before);
}

void copy(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  const CurrentDevice current(stream, "copy");
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "copy");
  check(cudaStreamSynchronize(native(stream)), "copy");
}

void synchronize(const Stream& stream) {
  const CurrentDevice current(stream, "synchronize");
  check(cudaStreamSynchronize(native(stream)), "synchronize");
}

// Owns what a measurement creates, so that an error leaks nothing.
struct Capture {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  std::array<cudaEvent_t, 2> events{};

  ~Capture() {
    for (cudaEvent_t event : events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
};

__global__ void any_kernel() {}

}  // namespace

std::vector<double> time(Device device, const std::function<void(const Stream&)>& enqueue, int replays) {
  const CurrentDevice current(Stream{device, 0, nullptr}, "time");
  Capture capture;
  check(cudaStreamCreateWithFlags(&capture.stream, cudaStreamNonBlocking), "time");
  for (cudaEvent_t& event : capture.events) check(cudaEventCreate(&event), "time");
  const Stream stream{device, 0, capture.stream};
  enqueue(stream);  // loads the kernels, which is not allowed during a capture
  check(cudaStreamSynchronize(capture.stream), "time");
  check(cudaStreamBeginCapture(capture.stream, cudaStreamCaptureModeThreadLocal), "time");
  try {
    enqueue(stream);
  } catch (...) {
    cudaStreamEndCapture(capture.stream, &capture.graph);
    throw;
  }
  check(cudaStreamEndCapture(capture.stream, &capture.graph), "time");
  check(cudaGraphInstantiate(&capture.executable, capture.graph, 0), "time");
  constexpr int kWarmUp = 2;
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUp + replays; ++i) {
    check(cudaEventRecord(capture.events[0], capture.stream), "time");
    check(cudaGraphLaunch(capture.executable, capture.stream), "time");
    check(cudaEventRecord(capture.events[1], capture.stream), "time");
    check(cudaEventSynchronize(capture.events[1]), "time");
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, capture.events[0], capture.events[1]), "time");
    if (i >= kWarmUp) seconds.push_back(1e-3 * static_cast<double>(milliseconds));
  }
  return seconds;
}

void check(cudaError_t error, std::string_view operation) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the error would otherwise stay for the caller's next check
  throw Error(operation, "stream", "work that the device accepts",
              std::string("the CUDA runtime reports: ") + cudaGetErrorString(error));
}

CurrentDevice::CurrentDevice(const Stream& stream, std::string_view operation) : device_(stream.device.index) {
  check(cudaGetDevice(&before_), operation);
  if (before_ != device_) check(cudaSetDevice(device_), operation);
}

CurrentDevice::~CurrentDevice() {
  if (before_ != device_) cudaSetDevice(before_);
}

namespace {

// How many clusters of blocks that take a multiprocessor's shared memory are on the current device at a time.
int resident_clusters(int blocks, int shared_bytes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const bool known = cudaOccupancyMaxActiveClusters(&clusters, any_kernel, &config) == cudaSuccess;
  return known ? clusters : 0;
}

}  // namespace

const DeviceProperties& properties(int device) {
  constexpr int kMaxDevices = 64;
  static std::array<DeviceProperties, kMaxDevices> known;
  static std::array<std::once_flag, kMaxDevices> once;
  static const DeviceProperties none;
  if (device < 0 || device >= kMaxDevices) return none;
  const auto i = static_cast<std::size_t>(device);
  std::call_once(once[i], [&] {
    cudaDeviceGetAttribute(&known[i].major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&known[i].minor, cudaDevAttrComputeCapabilityMinor, device);
    cudaDeviceGetAttribute(&known[i].multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&known[i].shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    int before = 0;
    cudaFuncAttributes code{};
    if (cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(device) == cudaSuccess) {
      // A later device runs the PTX of 8.0, which has none of this, unless the build lists that device's own code.
      const int version = cudaFuncGetAttributes(&code, any_kernel) == cudaSuccess ? code.ptxVersion : 0;
      const bool is_at_least_90 = version >= 90;
      known[i].programmatic_launch = is_at_least_90;
      known[i].bulk_copies = is_at_least_90;
      known[i].runs_sm90 = version == 90 && known[i].major == 9 && known[i].minor == 0;
      known[i].runs_sm100 = version == 100 && known[i].major == 10 && known[i].minor == 0;
      int block_bytes = 0;
      cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
      if (known[i].runs_sm90 &&
          cudaFuncSetAttribute(any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, block_bytes) == cudaSuccess) {
        known[i].clusters_of_2 = resident_clusters(2, block_bytes);
        known[i].clusters_of_4 = resident_clusters(4, block_bytes);
        known[i].clusters_of_8 = resident_clusters(8, block_bytes);
      }
      cudaSetDevice(before);
    }
    cudaGetLastError();
  });
  return known[i];
}

namespace {

std::string architecture_reason(const DeviceProperties& device, int major, bool runs) {
  if (runs) return {};
  const std::string wanted = std::to_string(major) + ".0";
  if (device.major == major && device.minor == 0) {
    return "needs machine code of compute capability " + wanted + "; this build has none";
  }
  return "needs compute capability " + wanted + ", the device has " + std::to_string(device.major) + "." +
         std::to_string(device.minor);
}

}  // namespace

std::string sm90_reason(const DeviceProperties& device) { return architecture_reason(device, 9, device.runs_sm90); }
std::string sm100_reason(const DeviceProperties& device) { return architecture_reason(device, 10, device.runs_sm100); }

void allow_shared_memory(const void* kernel, std::size_t bytes, std::string_view operation) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), operation);
}

const DeviceFunctions& device_functions() {
  static const DeviceFunctions functions{
      allocate, release, copy, synchronize, time, measure_speed, &resident_functions()};
  return functions;
}

}  // namespace thalweg::cu
