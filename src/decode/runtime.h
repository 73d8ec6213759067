#pragma once

// Where a model runs: the only way from src/decode to a device's memory and stream.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/device_functions.h"
#include "thalweg/device.h"
#include "thalweg/device_memory.h"
#include "thalweg/dtype.h"
#include "thalweg/nn.h"

namespace thalweg::decode {

class Runtime;

// Callbacks around each wait for the device, which may be one for another rank.
class WaitListener {
 public:
  virtual ~WaitListener() = default;
  virtual void begin_wait() noexcept = 0;
  virtual void end_wait() noexcept = 0;
  // Throws Error if what was waited for did not come.
  virtual void check() const = 0;
  // The device reports an error: throws the one that led to it, if it is known to be another rank's end.
  virtual void explain() const = 0;
};

// A step that was recorded once, to be launched again and again.
class Graph {
 public:
  Graph() = default;
  Graph(const Runtime& runtime, const std::function<void()>& enqueue);
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  bool defined() const { return graph_ != nullptr; }
  void launch() const;

 private:
  const Runtime* runtime_ = nullptr;
  void* graph_ = nullptr;
};

// A point in the stream that the host can wait for.
class Event {
 public:
  explicit Event(const Runtime& runtime);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record() const;
  void wait() const;

 private:
  const Runtime& runtime_;
  void* event_ = nullptr;  // null on the host
};

class Runtime {
 public:
  // Throws Error if the device is absent or no model runs on it. `exact`: MatmulPrecision::kExact, and f32 activations.
  Runtime(Device device, int threads, const ThreadPool& pool, bool exact, bool batch_invariant = false);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Stream& stream() const { return stream_; }
  // With the hint of a call's rows, unless it costs speed and batches may change bits.
  Stream hinted(Stream stream, RowHint rows) const {
    if (hints_rows_) stream.rows = rows;
    return stream;
  }
  Device device() const { return stream_.device; }
  // The host itself: nothing is copied, and a call returns when its work is done.
  bool on_host() const { return functions_ == nullptr; }
  // Another device, whose kernels read the host's memory where it is.
  bool reads_host_memory() const { return functions_ != nullptr && functions_->map_host != nullptr; }
  // A device with memory of its own, within which much is copied in little time.
  bool copies_within_device() const { return functions_ != nullptr && functions_->enqueue_copies != nullptr; }
  bool takes_drafts() const { return on_host() || functions_->takes_drafts; }
  void map_host(const void* memory, std::size_t bytes) const { functions_->map_host(device(), memory, bytes); }
  void unmap_host(const void* memory) const noexcept { functions_->unmap_host(device(), memory); }
  MatmulPrecision precision() const { return precision_; }
  DType activations() const { return activations_; }

  std::string device_name() const;  // "cuda:0 (NVIDIA H200)", "cpu"
  std::string device_kind() const;  // "NVIDIA H200", "cpu"
  // How ranks on such devices find each other; null where there is no way.
  const DeviceRanks* ranks() const {
    return functions_ != nullptr && functions_->ranks ? &functions_->ranks() : nullptr;
  }
  void set_wait_listener(WaitListener* listener) { listener_ = listener; }
  std::size_t free_memory() const;  // of the device, in bytes
  // Seconds of what `enqueue` puts into a stream of the device: the median of a few replays.
  double time(const std::function<void(const Stream&)>& enqueue) const;

  // In the order of the stream. The source of an upload may be changed on return unless it is pinned.
  void upload(void* to, const void* from, std::size_t bytes) const;
  void copy(void* to, const void* from, std::size_t bytes) const;  // within the device
  void copy(std::span<const MemoryCopy> copies) const;
  void clear(void* memory, std::size_t bytes) const;
  // Waits, as does wait().
  void download(void* to, const void* from, std::size_t bytes) const;
  void wait() const;

 private:
  friend class Event;
  friend class Graph;
  friend class PinnedMemory;

  // body(), which waits for the device.
  template <class Body>
  void waiting(const Body& body) const {
    if (listener_ == nullptr) return body();
    const struct Wait {
      WaitListener& listener;
      explicit Wait(WaitListener& l) : listener(l) { listener.begin_wait(); }
      ~Wait() { listener.end_wait(); }
    } scope(*listener_);
    try {
      body();
    } catch (...) {
      listener_->explain();
      throw;
    }
    listener_->check();
  }

  ThreadPool pool_;  // of the caller, if it has a `run`
  Stream stream_;
  const ResidentFunctions* functions_ = nullptr;  // null on the host
  MatmulPrecision precision_ = MatmulPrecision::kFast;
  DType activations_ = DType::kF32;
  bool hints_rows_ = true;
  WaitListener* listener_ = nullptr;  // null: this rank is the only one
};

// Host memory that copies reach without a detour; ordinary memory where the device is the host.
class PinnedMemory {
 public:
  PinnedMemory(const Runtime& runtime, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const ResidentFunctions* functions_;
  std::byte* data_;
  std::size_t bytes_;
};

// Memory of a step, which grows on demand and is kept. While it counts, it returns null and notes the most that is
// requested, so that a step can be planned.
class StepMemory {
 public:
  explicit StepMemory(const Runtime& runtime) : runtime_(runtime) {}

  void begin_counting() { counting_ = true; }
  std::size_t counted() const { return most_; }
  int allocations() const { return allocations_; }
  void end_counting();  // allocates what was counted

  Workspace reserve(std::size_t bytes);
  // Behind what was reserved last. Data is null if that does not fit, as memory in use cannot grow.
  Workspace reserve_behind(std::size_t bytes);

 private:
  const Runtime& runtime_;
  DeviceMemory memory_;
  std::size_t reserved_ = 0;
  std::size_t most_ = 0;
  int allocations_ = 0;
  bool counting_ = false;
};

}  // namespace thalweg::decode
