#include "decode/ranked_device.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "thalweg/error.h"

namespace thalweg::decode {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLookEvery = std::chrono::milliseconds(50);
// A rank that ends in peace may be gone before this one has seen the end of its own work.
constexpr double kGraceSeconds = 1.0;
// What waits for the others while the process ends waits no longer.
constexpr auto kPatience = std::chrono::seconds(5);

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

// Shared with the thread, which may be left behind: a call that another rank never answers cannot be taken back.
struct RankedDevice::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_ptr<DeviceCommunicator> communicator;
  std::exception_ptr refused;  // why there is none
  std::optional<Error> error;  // why the ranks were given up
  int working = 0;             // begun and not ended
  Clock::time_point since;     // of the last begin or end
  bool ending = false;
  bool done = false;  // the thread has nothing left to do

  // The thread: connects, watches, and disconnects.
  void run(const std::function<std::unique_ptr<DeviceCommunicator>()>& connect, comm::Communicator& host);

 private:
  bool connected(const std::function<std::unique_ptr<DeviceCommunicator>()>& connect);
  std::optional<Error> why_lost(comm::Communicator& host, Clock::time_point& gone_since) const;
};

bool RankedDevice::State::connected(const std::function<std::unique_ptr<DeviceCommunicator>()>& connect) {
  std::unique_ptr<DeviceCommunicator> made;
  std::exception_ptr thrown;
  try {
    made = connect();
  } catch (...) {
    thrown = std::current_exception();
  }
  const std::lock_guard lock(mutex);
  communicator = std::move(made);
  refused = thrown;
  changed.notify_all();
  return communicator != nullptr && !ending;
}

std::optional<Error> RankedDevice::State::why_lost(comm::Communicator& host, Clock::time_point& gone_since) const {
  if (const std::string why = host.failure(); !why.empty()) {
    return Error("ranks", "state", "ranks that run together", why);
  }
  const std::string failure = communicator->failure();
  const int gone = working > 0 || !failure.empty() ? host.ended_rank() : -1;
  if (gone < 0) gone_since = Clock::now();
  if (gone >= 0 && (!failure.empty() || seconds_since(gone_since) > kGraceSeconds)) {
    return comm::lost(gone, "one that has ended");
  }
  if (!failure.empty()) return Error("ranks", "devices", "devices that reach each other", failure);
  if (working > 0 && seconds_since(since) > host.timeout()) {
    std::string seconds = std::to_string(host.timeout());
    seconds.resize(seconds.find('.') + 2);
    return Error("ranks", "state", "ranks that take part",
                 "work on the device that has waited for another rank for " + seconds +
                     " s: one hangs, or the connection of the devices does");
  }
  return std::nullopt;
}

void RankedDevice::State::run(const std::function<std::unique_ptr<DeviceCommunicator>()>& connect,
                              comm::Communicator& host) {
  bool lost = false;
  if (connected(connect)) {
    std::unique_lock lock(mutex);
    Clock::time_point gone_since = Clock::now();
    while (!changed.wait_for(lock, kLookEvery, [this] { return ending; })) {
      error = why_lost(host, gone_since);
      if (!error) continue;
      host.fail(error->what());
      lost = true;
      changed.notify_all();
      break;
    }
    // Whoever ends because the ranks have failed must not wait for them.
    if (ending && !host.failure().empty()) lost = true;
  }
  if (lost) communicator->abort();
  std::unique_ptr<DeviceCommunicator> last;
  {
    // Others use it until this rank's device is given up.
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return ending; });
    last = std::move(communicator);
  }
  last.reset();
  const std::lock_guard lock(mutex);
  done = true;
  changed.notify_all();
}

RankedDevice::RankedDevice(Runtime& runtime, const DeviceRanks& ranks, comm::Communicator& host)
    : runtime_(runtime), host_(host), state_(std::make_shared<State>()) {
  if (const std::string why = ranks.unavailable(); !why.empty()) {
    throw Error("ModelOptions", "device", "the CPU, or NCCL for ranks on GPUs", why);
  }
  std::vector<std::byte> id;
  if (host.rank() == 0) id = ranks.make_id();
  std::uint64_t length = id.size();
  host.broadcast(&length, sizeof length);
  id.resize(length);
  host.broadcast(id.data(), id.size());

  std::thread([state = state_, &host, &ranks, device = runtime.device(), id = std::move(id), rank = host.rank(),
               count = host.size()] {
    state->run([&] { return ranks.connect(device, id, rank, count); }, host);
  }).detach();

  std::unique_lock lock(state_->mutex);
  const Clock::time_point begin = Clock::now();
  const auto came = [&] { return state_->communicator != nullptr || state_->refused != nullptr; };
  while (!state_->changed.wait_for(lock, kLookEvery, came)) {
    const int gone = host.ended_rank();
    if (gone < 0 && seconds_since(begin) <= host.timeout()) continue;
    state_->ending = true;
    state_->changed.notify_all();
    if (gone >= 0) throw comm::lost(gone, "one that has ended");
    throw Error("ranks", "devices", "devices that connect within " + std::to_string(host.timeout()) + " s", "none");
  }
  if (state_->refused != nullptr) {
    state_->ending = true;
    state_->changed.notify_all();
    std::rethrow_exception(state_->refused);
  }
  state_->since = Clock::now();
  lock.unlock();
  runtime_.set_wait_listener(this);
}

RankedDevice::~RankedDevice() {
  runtime_.set_wait_listener(nullptr);
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [this] { return state_->done; });
}

void RankedDevice::begin_wait() noexcept {
  const std::lock_guard lock(state_->mutex);
  ++state_->working;
  state_->since = Clock::now();
}

void RankedDevice::end_wait() noexcept {
  const std::lock_guard lock(state_->mutex);
  --state_->working;
  state_->since = Clock::now();
}

void RankedDevice::check() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->error) throw Error(*state_->error);
}

void RankedDevice::explain() const {
  std::unique_lock lock(state_->mutex);
  const auto limit = std::chrono::duration<double>(kGraceSeconds) + 4 * kLookEvery;
  if (state_->changed.wait_for(lock, limit, [this] { return state_->error.has_value(); })) throw Error(*state_->error);
}

void RankedDevice::all_reduce(const Tensor& y) {
  check();
  state_->communicator->all_reduce(runtime_.stream(), y.data, y.dtype, y.size());
}

bool RankedDevice::sum_and_norm(const RmsNormArgs& args) {
  check();
  return state_->communicator->sum_and_norm(runtime_.stream(), args);
}

void RankedDevice::exchange(std::span<const RankTransfer> sends, std::span<const RankTransfer> receives) {
  check();
  state_->communicator->exchange(runtime_.stream(), sends, receives);
}

bool RankedDevice::in_order(const Tensor& logits) const {
  return logits.dim(0) == 1 && logits.dim(1) % host_.size() == 0;
}

Tensor RankedDevice::mine(const Tensor& logits) const {
  const std::int64_t vocabulary = logits.dim(1);
  const auto begin = [&](int rank) { return vocabulary * rank / host_.size(); };
  return column_range(logits, begin(host_.rank()), begin(host_.rank() + 1) - begin(host_.rank()));
}

void RankedDevice::begin_columns(const Tensor& logits) {
  // The others' columns add up with zeros.
  if (in_order(logits)) return;
  runtime_.clear(logits.data, static_cast<std::size_t>(bytes_of(logits.dtype, logits.size())));
}

void RankedDevice::end_columns(const Tensor& logits) {
  if (!in_order(logits)) return all_reduce(logits);
  check();
  state_->communicator->all_gather(runtime_.stream(), logits.data,
                                   static_cast<std::size_t>(bytes_of(logits.dtype, logits.dim(1) / host_.size())));
}

}  // namespace thalweg::decode
