// What a model that lives on a CUDA device needs: streams, copies in their order, pinned memory, graphs.

#include <string>

#include "cuda/device_functions.h"
#include "cuda/launch.h"
#include "cuda/memory_copies.h"
#include "cuda/ranks/nccl_communicator.h"

namespace thalweg::cu {
namespace {

std::string name(Device device) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, device.index), "device");
  return found.name;
}

std::size_t free_memory(Device device) {
  const CurrentDevice current(Stream{device, 0, nullptr}, "device");
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "device");
  return free;
}

void* create_stream(Device device) {
  const CurrentDevice current(Stream{device, 0, nullptr}, "device");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "device");
  return stream;
}

void destroy_stream(Device, void* stream) noexcept { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }

void* allocate_pinned(Device device, std::size_t bytes) {
  const CurrentDevice current(Stream{device, 0, nullptr}, "pinned memory");
  void* memory = nullptr;
  check(cudaMallocHost(&memory, bytes), "pinned memory");
  return memory;
}

void release_pinned(void* memory) noexcept { cudaFreeHost(memory); }

void enqueue_copy(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  const CurrentDevice current(stream, "copy");
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "copy");
}

void enqueue_zeros(const Stream& stream, void* memory, std::size_t bytes) {
  const CurrentDevice current(stream, "zeros");
  check(cudaMemsetAsync(memory, 0, bytes, native(stream)), "zeros");
}

void* create_event(Device device) {
  const CurrentDevice current(Stream{device, 0, nullptr}, "event");
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  return event;
}

void record_event(const Stream& stream, void* event) {
  const CurrentDevice current(stream, "event");
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), native(stream)), "event");
}

void wait_event(const Stream& stream, void* event) {
  const CurrentDevice current(stream, "event");
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "event");
}

void destroy_event(void* event) noexcept { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

void* capture(const Stream& stream, const std::function<void()>& enqueue) {
  const CurrentDevice current(stream, "capture");
  check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal), "capture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(native(stream), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(native(stream), &graph), "capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "capture");
  return executable;
}

void launch(const Stream& stream, void* graph) {
  const CurrentDevice current(stream, "launch");
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream)), "launch");
}

void destroy_graph(void* graph) noexcept { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

constexpr ResidentFunctions kResident{.name = name,
                                      .free_memory = free_memory,
                                      .create_stream = create_stream,
                                      .destroy_stream = destroy_stream,
                                      .allocate_pinned = allocate_pinned,
                                      .release_pinned = release_pinned,
                                      .enqueue_copy = enqueue_copy,
                                      .enqueue_zeros = enqueue_zeros,
                                      .create_event = create_event,
                                      .record_event = record_event,
                                      .wait_event = wait_event,
                                      .destroy_event = destroy_event,
                                      .capture = capture,
                                      .launch = launch,
                                      .destroy_graph = destroy_graph,
                                      .enqueue_copies = enqueue_copies,
                                      .ranks = nccl_ranks,
                                      .takes_drafts = true,
                                      .row_hints_cost = true};

}  // namespace

const ResidentFunctions& resident_functions() { return kResident; }

}  // namespace thalweg::cu
