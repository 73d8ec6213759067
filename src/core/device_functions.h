#pragma once

// How a backend's device is reached: its memory, its streams, its time. The CPU needs none of it.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/device_communicator.h"
#include "thalweg/device.h"

namespace thalweg {

// What a device reaches, measured on request: floors of benchmarks rest on it.
struct DeviceSpeed {
  double bytes_per_second = 0.0;         // of a copy far larger than the caches, bytes read plus bytes written
  double flops_per_second = 0.0;         // f32 multiply-adds on registers, two flops each
  double matrix_flops_per_second = 0.0;  // of dense products of 16-bit matrices: what the clock allows, not measured
};

// Bytes to be copied within a device; zeros if `from` is null. Neither overlaps with another of the same call.
struct MemoryCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

// What a model needs that lives on the device. All of them throw thalweg::Error on failure.
struct ResidentFunctions {
  std::string (*name)(Device device);
  std::size_t (*free_memory)(Device device);  // bytes
  void* (*create_stream)(Device device);      // Stream::native
  void (*destroy_stream)(Device device, void* stream) noexcept;
  void* (*allocate_pinned)(Device device, std::size_t bytes);  // host memory that copies reach without a detour
  void (*release_pinned)(void* memory) noexcept;
  // Any direction, in the order of the stream. Pageable host memory that is read may be changed on return, pinned
  // memory only when the copy is complete.
  void (*enqueue_copy)(const Stream& stream, void* to, const void* from, std::size_t bytes);
  void (*enqueue_zeros)(const Stream& stream, void* memory, std::size_t bytes);
  // Events: a point in a stream that the host can wait for.
  void* (*create_event)(Device device);
  void (*record_event)(const Stream& stream, void* event);
  void (*wait_event)(const Stream& stream, void* event);
  void (*destroy_event)(void* event) noexcept;
  // A graph of what `enqueue` puts into the stream, to be launched again and again.
  void* (*capture)(const Stream& stream, const std::function<void()>& enqueue);
  void (*launch)(const Stream& stream, void* graph);
  void (*destroy_graph)(void* graph) noexcept;
  // Where kernels read the host's memory: announces memory that stays where it is until it is withdrawn, the pages of a
  // file's weights, which are not copied then. Null where kernels read the device's memory alone.
  void (*map_host)(Device device, const void* memory, std::size_t bytes) = nullptr;
  void (*unmap_host)(Device device, const void* memory) noexcept = nullptr;
  // Many copies within the device at once. Null where single ones cost nothing to enqueue.
  void (*enqueue_copies)(const Stream& stream, std::span<const MemoryCopy> copies) = nullptr;
  // Several ranks, one on each device. Null: the backend's models run alone.
  const DeviceRanks& (*ranks)() = nullptr;
  // Whether the fused step of the gated delta rule takes drafts there.
  bool takes_drafts = false;
  // Whether RowHint costs speed there, so that models give it only if batches must not change bits.
  bool row_hints_cost = false;
  // A model runs there only if the device is named: the host emulates the device, or nobody has run a model on it yet.
  bool only_if_named = false;
};

// How device_memory.h reaches the device and the benchmark times it. All of them throw thalweg::Error on failure.
struct DeviceFunctions {
  void* (*allocate)(Device device, std::size_t bytes);
  void (*release)(Device device, void* memory) noexcept;
  void (*copy)(const Stream& stream, void* to, const void* from, std::size_t bytes);  // any direction; waits
  void (*synchronize)(const Stream& stream);
  // Seconds of each of `replays` runs of what `enqueue` puts into a stream, without the cost of launching it.
  std::vector<double> (*time)(Device device, const std::function<void(const Stream&)>& enqueue, int replays);
  DeviceSpeed (*speed)(Device device);
  const ResidentFunctions* resident = nullptr;  // null: no model runs on the backend's devices
};

}  // namespace thalweg
