#include "metal/device_stream.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "metal/layers.h"
#include "metal/private_memory.h"
#include "thalweg/device_memory.h"

namespace thalweg::metal {
namespace {

// Host memory that copies may stage before the host waits for them.
constexpr std::size_t kMostStaged = std::size_t{64} << 20;

// Streams that are there.
struct Known {
  std::mutex mutex;
  std::set<const void*> streams;
};

Known& known() {
  static Known instance;
  return instance;
}

// `from` null: zeros.
Launch copy_launch(void* to, const void* from, std::size_t bytes, CopyParameters& p) {
  const auto shift_of = [](const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % 4; };
  const std::int64_t width = shift_of(to) == 0 && shift_of(from) == 0 && bytes % 4 == 0 ? 4 : 1;
  p.bytes = static_cast<std::int64_t>(bytes);
  p.shift = static_cast<std::int64_t>(shift_of(to));
  p.words = (p.shift + p.bytes + 3) / 4;
  Launch launch = columns_launch("copy_words", p.words);
  launch.set(p).add(from, from == nullptr ? 0 : bytes).add(to, bytes);
  launch.constant("kWidth", width).constant("kHasOther", from != nullptr);
  return launch;
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

DeviceStream::DeviceStream(const CommandBuffers& buffers) : buffers_(buffers) {
  const std::lock_guard lock(known().mutex);
  known().streams.insert(this);
}

DeviceStream::~DeviceStream() {
  if (!in_flight_.empty()) buffers_.wait(in_flight_.back().number);
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
  if (bytes == 0) return;
  // What the caller may change on return is copied at once.
  if (!is_allocated(from)) {
    if (is_private(to)) return stage(to, from, bytes);
    finish();
    std::memcpy(to, from, bytes);
    return;
  }
  CopyParameters p{};
  record("copy")->launch(copy_launch(to, from, bytes, p));
}

void DeviceStream::stage(void* to, const void* from, std::size_t bytes) {
  if (captured_ == nullptr) {
    std::size_t staged = pending_bytes_;
    for (const InFlight& one : in_flight_) staged += one.bytes;
    if (staged > 0 && staged + bytes > kMostStaged) finish();
    pending_bytes_ += bytes;
  }
  const auto* first = static_cast<const std::byte*>(from);
  std::vector<std::byte> staged(first, first + bytes);
  CopyParameters p{};
  LaunchList& list = captured_ != nullptr ? *captured_ : pending_;
  record("copy")->launch(copy_launch(to, staged.data(), bytes, p));
  auto recorded = std::make_shared<RecordedLaunch>();
  recorded->launch = list.back()->launch;
  recorded->parameters = list.back()->parameters;
  recorded->launch.parameters = recorded->parameters.data();
  recorded->staged = std::move(staged);
  list.back() = std::move(recorded);
}

void DeviceStream::clear(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  CopyParameters p{};
  record("clear")->launch(copy_launch(memory, nullptr, bytes, p));
}

std::uint64_t DeviceStream::commit() {
  if (pending_.empty()) return buffers_.committed();
  LaunchList launches = std::move(pending_);
  pending_.clear();
  const std::size_t bytes = std::exchange(pending_bytes_, 0);
  {
    const std::unique_ptr<Encoder> encoder = buffers_.make();
    for (const auto& recorded : launches) encoder->launch(recorded->launch);
  }
  const std::uint64_t number = buffers_.committed();
  std::erase_if(launches, [](const auto& recorded) { return recorded->staged.empty(); });
  if (!launches.empty()) in_flight_.push_back({number, std::move(launches), bytes});
  return number;
}

void DeviceStream::wait(std::uint64_t number) {
  buffers_.wait(number);
  std::erase_if(in_flight_, [&](const InFlight& done) { return done.number <= number; });
}

void copy_and_wait(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  DeviceStream* own = DeviceStream::find(stream);
  if (!is_private(to) && !is_private(from)) {
    synchronize(stream);
    std::memcpy(to, from, bytes);
  } else if (own != nullptr) {
    own->copy(to, from, bytes);
    own->finish();
  } else {
    CopyParameters p{};
    Launch launch = copy_launch(to, from, bytes, p);
    launch.after_previous = true;
    make_encoder("copy", stream)->launch(launch);
    synchronize(stream);
  }
}

namespace {

DeviceStream& stream_of(const Stream& stream) { return *static_cast<DeviceStream*>(stream.native); }

void enqueue_copy(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  stream_of(stream).copy(to, from, bytes);
}

void enqueue_zeros(const Stream& stream, void* memory, std::size_t bytes) { stream_of(stream).clear(memory, bytes); }

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
