#include "decode/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/backends.h"
#include "thalweg/error.h"

namespace thalweg::decode {
namespace {

const ResidentFunctions* functions_of(Device device) {
  if (device.type == DeviceType::kCpu) return nullptr;
  const Backend& chosen = backend(device.type);
  const auto refuse = [&](const std::string& why) {
    throw Error("Model", "device", "a device that models run on",
                std::string(device_type_name(device.type)) + ": " + why);
  };
  if (!chosen.unavailable.empty()) refuse(chosen.unavailable);
  if (chosen.device == nullptr || chosen.device->resident == nullptr) refuse("the backend runs operations only");
  return chosen.device->resident;
}

}  // namespace

Runtime::Runtime(Device device, int threads, const ThreadPool& pool, bool exact, bool batch_invariant)
    : pool_(pool),
      stream_{device, threads, nullptr, RowHint::kByCount, pool_.run != nullptr ? &pool_ : nullptr},
      functions_(functions_of(device)),
      precision_(exact ? MatmulPrecision::kExact : MatmulPrecision::kFast),
      // The matrix units of a device take 16 bits; the residual stream stays f32.
      activations_(on_host() || exact ? DType::kF32 : DType::kBF16),
      hints_rows_(on_host() || batch_invariant || !functions_->row_hints_cost) {
  if (!on_host()) stream_.native = functions_->create_stream(device);
}

Runtime::~Runtime() {
  if (!on_host()) functions_->destroy_stream(device(), stream_.native);
}

std::string Runtime::device_name() const {
  if (on_host()) return "cpu";
  return std::string(device_type_name(device().type)) + ":" + std::to_string(device().index) + " (" + device_kind() +
         ")";
}

std::string Runtime::device_kind() const { return on_host() ? "cpu" : functions_->name(device()); }

std::size_t Runtime::free_memory() const { return on_host() ? 0 : functions_->free_memory(device()); }

double Runtime::time(const std::function<void(const Stream&)>& enqueue) const {
  if (on_host()) {
    const auto start = std::chrono::steady_clock::now();
    enqueue(stream());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  constexpr int kReplays = 5;
  std::vector<double> seconds = backend(device().type).device->time(device(), enqueue, kReplays);
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void Runtime::upload(void* to, const void* from, std::size_t bytes) const { copy(to, from, bytes); }

void Runtime::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return;
  if (on_host()) {
    std::memcpy(to, from, bytes);
  } else {
    waiting([&] { functions_->enqueue_copy(stream_, to, from, bytes); });  // of pageable memory, it may wait
  }
}

void Runtime::copy(std::span<const MemoryCopy> copies) const {
  if (copies_within_device()) return functions_->enqueue_copies(stream_, copies);
  for (const MemoryCopy& one : copies) {
    if (one.from != nullptr) {
      copy(one.to, one.from, one.bytes);
    } else {
      clear(one.to, one.bytes);
    }
  }
}

void Runtime::clear(void* memory, std::size_t bytes) const {
  if (bytes == 0) return;
  if (on_host()) {
    std::memset(memory, 0, bytes);
  } else {
    functions_->enqueue_zeros(stream_, memory, bytes);
  }
}

void Runtime::download(void* to, const void* from, std::size_t bytes) const {
  copy(to, from, bytes);
  wait();
}

void Runtime::wait() const {
  waiting([&] { synchronize(stream_); });
}

Event::Event(const Runtime& runtime)
    : runtime_(runtime), event_(runtime.on_host() ? nullptr : runtime.functions_->create_event(runtime.device())) {}

Event::~Event() {
  if (event_ != nullptr) runtime_.functions_->destroy_event(event_);
}

void Event::record() const {
  if (event_ != nullptr) runtime_.functions_->record_event(runtime_.stream_, event_);
}

void Event::wait() const {
  if (event_ == nullptr) return;
  runtime_.waiting([&] { runtime_.functions_->wait_event(runtime_.stream_, event_); });
}

Graph::Graph(const Runtime& runtime, const std::function<void()>& enqueue)
    : runtime_(&runtime), graph_(runtime.functions_->capture(runtime.stream_, enqueue)) {}

Graph::~Graph() {
  if (graph_ != nullptr) runtime_->functions_->destroy_graph(graph_);
}

Graph::Graph(Graph&& other) noexcept : runtime_(other.runtime_), graph_(std::exchange(other.graph_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(runtime_, other.runtime_);
  std::swap(graph_, other.graph_);
  return *this;
}

void Graph::launch() const { runtime_->functions_->launch(runtime_->stream_, graph_); }

PinnedMemory::PinnedMemory(const Runtime& runtime, std::size_t bytes)
    : functions_(runtime.functions_),
      data_(functions_ != nullptr ? static_cast<std::byte*>(functions_->allocate_pinned(runtime.device(), bytes))
                                  : new std::byte[bytes]),
      bytes_(bytes) {}

PinnedMemory::~PinnedMemory() {
  if (functions_ != nullptr) {
    functions_->release_pinned(data_);
  } else {
    delete[] data_;
  }
}

void StepMemory::end_counting() {
  counting_ = false;
  reserve(most_);
}

Workspace StepMemory::reserve(std::size_t bytes) {
  reserved_ = bytes;
  most_ = std::max(most_, bytes);
  if (counting_) return {nullptr, bytes};
  if (bytes > memory_.bytes()) {
    if (!runtime_.on_host()) runtime_.wait();  // what is replaced may be in use
    memory_ = DeviceMemory();
    memory_ = DeviceMemory(runtime_.device(), bytes);
    ++allocations_;
  }
  return {memory_.data(), bytes};
}

Workspace StepMemory::reserve_behind(std::size_t bytes) {
  if (counting_) most_ = std::max(most_, reserved_ + bytes);
  const bool fits = !counting_ && reserved_ + bytes <= memory_.bytes();
  return {fits ? static_cast<std::byte*>(memory_.data()) + reserved_ : nullptr, bytes};
}

}  // namespace thalweg::decode
