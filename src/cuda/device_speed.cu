// The device's speed, measured with plain kernels.

#include <algorithm>

#include "cuda/device_functions.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;
constexpr int kUnrolled = 4;
constexpr int kSteps = 4096;
constexpr int kChains = 8;

__global__ void copy_kernel(const float4* from, float4* to) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * (kThreads * kUnrolled) + threadIdx.x;
  float4 values[kUnrolled];
#pragma unroll
  for (int i = 0; i < kUnrolled; ++i) values[i] = from[first + i * kThreads];
#pragma unroll
  for (int i = 0; i < kUnrolled; ++i) to[first + i * kThreads] = values[i];
}

__global__ void multiply_add_kernel(float* results, float factor) {
  float x[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) x[i] = static_cast<float>(threadIdx.x + i);
#pragma unroll 16
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) x[i] = fmaf(x[i], factor, 1.0F);
  }
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += x[i];
  results[blockIdx.x * kThreads + threadIdx.x] = sum;
}

double fastest(Device device, const std::function<void(const Stream&)>& enqueue) {
  const std::vector<double> seconds = time(device, enqueue, 10);
  return *std::min_element(seconds.begin(), seconds.end());
}

}  // namespace

DeviceSpeed measure_speed(Device device) {
  constexpr std::int64_t kBlocks = 1 << 15;
  constexpr std::int64_t kBytes = kBlocks * kThreads * kUnrolled * std::int64_t{sizeof(float4)};  // 512 MiB each way
  const CurrentDevice current(Stream{device, 0, nullptr}, "speed");
  const DeviceFunctions& functions = device_functions();
  struct Buffers {
    const DeviceFunctions& functions;
    Device device;
    void* memory = functions.allocate(device, static_cast<std::size_t>(2 * kBytes));
    ~Buffers() { functions.release(device, memory); }
  } buffers{functions, device};
  auto* from = static_cast<float4*>(buffers.memory);
  auto* to = from + kBytes / std::int64_t{sizeof(float4)};
  check(cudaMemset(from, 1, static_cast<std::size_t>(kBytes)), "speed");
  DeviceSpeed speed;
  speed.bytes_per_second = 2.0 * static_cast<double>(kBytes) / fastest(device, [&](const Stream& stream) {
                             copy_kernel<<<static_cast<unsigned>(kBlocks), kThreads, 0, native(stream)>>>(from, to);
                             check(cudaGetLastError(), "speed");
                           });
  const int blocks = 8 * properties(device.index).multiprocessors;
  const double flops = 2.0 * kSteps * kChains * kThreads * blocks;
  speed.flops_per_second = flops / fastest(device, [&](const Stream& stream) {
                             multiply_add_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(
                                 reinterpret_cast<float*>(to), 0.5F);
                             check(cudaGetLastError(), "speed");
                           });
  // Flops of a multiprocessor's matrix units in a cycle (NVIDIA's architecture white papers).
  const int major = properties(device.index).major;
  const double per_cycle = major >= 9 ? 4096 : properties(device.index).minor == 0 ? 2048 : 1024;
  int kilohertz = 0;
  check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device.index), "speed");
  speed.matrix_flops_per_second = per_cycle * 1e3 * kilohertz * properties(device.index).multiprocessors;
  return speed;
}

}  // namespace thalweg::cu
