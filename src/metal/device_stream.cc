#include "metal/device_stream.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "metal/layers.h"

namespace thalweg::metal {
namespace {

// Streams and allocations that are there.
struct Known {
  std::mutex mutex;
  std::set<const void*> streams;
  std::map<const std::byte*, std::size_t> allocations;  // bytes by address
};

Known& known() {
  static Known instance;
  return instance;
}

bool is_allocated(const void* memory) {
  const auto* byte = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(known().mutex);
  auto next = known().allocations.upper_bound(byte);
  if (next == known().allocations.begin()) return false;
  --next;
  return byte < next->first + next->second;
}

// Keeps an operation's launches.
class Recorder final : public Encoder {
 public:
  Recorder(std::string_view operation, LaunchList& list) : operation_(operation), list_(list) {}

  void launch(const Launch& launch) override {
    const bool empty = launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0;
    if (launch.indirect_grid == nullptr && empty) return;
    auto recorded = std::make_shared<RecordedLaunch>();
    const auto* parameters = static_cast<const std::byte*>(launch.parameters);
    recorded->parameters.assign(parameters, parameters + launch.parameter_bytes);
    recorded->launch = launch;
    recorded->launch.operation = operation_;
    recorded->launch.parameters = recorded->parameters.data();
    recorded->launch.after_previous = launch.after_previous || first_;
    first_ = false;
    list_.push_back(std::move(recorded));
  }

 private:
  std::string_view operation_;  // a constant of its arguments
  LaunchList& list_;
  bool first_ = true;
};

}  // namespace

void note_allocation(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(known().mutex);
  known().allocations[static_cast<const std::byte*>(memory)] = bytes;
}

void forget_allocation(const void* memory) noexcept {
  const std::lock_guard lock(known().mutex);
  known().allocations.erase(static_cast<const std::byte*>(memory));
}

DeviceStream::DeviceStream(const CommandBuffers& buffers) : buffers_(buffers) {
  const std::lock_guard lock(known().mutex);
  known().streams.insert(this);
}

DeviceStream::~DeviceStream() {
  const std::lock_guard lock(known().mutex);
  known().streams.erase(this);
}

DeviceStream* DeviceStream::find(const Stream& stream) {
  const std::lock_guard lock(known().mutex);
  return known().streams.count(stream.native) != 0 ? static_cast<DeviceStream*>(stream.native) : nullptr;
}

std::unique_ptr<Encoder> DeviceStream::record(std::string_view operation) {
  return std::make_unique<Recorder>(operation, captured_ != nullptr ? *captured_ : pending_);
}

void DeviceStream::append(const LaunchList& launches) {
  pending_.insert(pending_.end(), launches.begin(), launches.end());
}

LaunchList DeviceStream::capture(const std::function<void()>& enqueue) {
  LaunchList launches;
  captured_ = &launches;
  try {
    enqueue();
  } catch (...) {
    captured_ = nullptr;
    throw;
  }
  captured_ = nullptr;
  return launches;
}

void DeviceStream::copy(void* to, const void* from, std::size_t bytes) {
  // What the caller may change on return is copied at once.
  if (!is_allocated(from)) {
    finish();
    std::memcpy(to, from, bytes);
    return;
  }
  const auto is_aligned = [](const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % 4 == 0; };
  const std::int64_t width = is_aligned(to) && is_aligned(from) && bytes % 4 == 0 ? 4 : 1;
  const CopyParameters p{static_cast<std::int64_t>(bytes) / width};
  Launch launch = columns_launch("copy_words", p.words);
  launch.set(p).add(from, bytes).add(to, bytes).constant("kWidth", width);
  record("copy")->launch(launch);
}

std::uint64_t DeviceStream::commit() {
  if (pending_.empty()) return buffers_.committed();
  const LaunchList launches = std::move(pending_);
  pending_.clear();
  {
    const std::unique_ptr<Encoder> encoder = buffers_.make();
    for (const auto& recorded : launches) encoder->launch(recorded->launch);
  }
  return buffers_.committed();
}

void DeviceStream::wait(std::uint64_t number) { buffers_.wait(number); }

namespace {

DeviceStream& stream_of(const Stream& stream) { return *static_cast<DeviceStream*>(stream.native); }

void enqueue_copy(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  stream_of(stream).copy(to, from, bytes);
}

// States are cleared when a sequence begins, never within a step.
void enqueue_zeros(const Stream& stream, void* memory, std::size_t bytes) {
  stream_of(stream).finish();
  std::memset(memory, 0, bytes);
}

// An event is the number of a command buffer. One that has not been recorded waits for nothing.
void record_event(const Stream& stream, void* event) {
  *static_cast<std::uint64_t*>(event) = stream_of(stream).commit();
}
void wait_event(const Stream& stream, void* event) { stream_of(stream).wait(*static_cast<std::uint64_t*>(event)); }
void* create_event(Device) { return new std::uint64_t{0}; }
void destroy_event(void* event) noexcept { delete static_cast<std::uint64_t*>(event); }

void* capture(const Stream& stream, const std::function<void()>& enqueue) {
  return new LaunchList(stream_of(stream).capture(enqueue));
}
void launch(const Stream& stream, void* graph) { stream_of(stream).append(*static_cast<LaunchList*>(graph)); }
void destroy_graph(void* graph) noexcept { delete static_cast<LaunchList*>(graph); }

}  // namespace

ResidentFunctions stream_functions() {
  ResidentFunctions functions{};
  functions.enqueue_copy = enqueue_copy;
  functions.enqueue_zeros = enqueue_zeros;
  functions.create_event = create_event;
  functions.record_event = record_event;
  functions.wait_event = wait_event;
  functions.destroy_event = destroy_event;
  functions.capture = capture;
  functions.launch = launch;
  functions.destroy_graph = destroy_graph;
  return functions;
}

}  // namespace thalweg::metal
