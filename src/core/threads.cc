#include "core/threads.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "thalweg/error.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace thalweg {
namespace {

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// A model's operations follow each other within microseconds, and sleeping and waking costs as much: spin a little
// first.
template <class Condition>
void spin_while(Condition&& condition) {
  for (int spin = 0; spin < 2000 && condition(); ++spin) pause_briefly();
}

// Tasks of one call, which the threads that run it claim one by one.
struct Job {
  alignas(64) std::atomic<std::int64_t> next{0};
  detail::TaskFunction function = nullptr;
  void* context = nullptr;
  std::int64_t tasks = 0;

  void work(int worker);
};

// Whether this thread is within a task: what that starts runs on this thread alone.
thread_local bool within_task = false;

void Job::work(int worker) {
  within_task = true;
  // Read once: other threads keep taking the line of `next`.
  const detail::TaskFunction run = function;
  void* const given = context;
  const std::int64_t end = tasks;
  for (std::int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < end;
       task = next.fetch_add(1, std::memory_order_relaxed)) {
    run(given, task, worker);
  }
  within_task = false;
}

// A call that is under way, and the helpers that have joined it. No lock is taken between two operations of a model:
// with many threads it would cost more than their work. A slot outlives its calls, so that a thread that comes too late
// finds no seat, but never memory that is gone.
class alignas(64) Slot {
 public:
  // By the caller, who then is worker 0. False if another call has the slot.
  bool take() { return !taken_.load(std::memory_order_relaxed) && !taken_.exchange(true, std::memory_order_acquire); }
  void open(detail::TaskFunction function, void* context, std::int64_t tasks, int helpers) {
    job_.function = function;
    job_.context = context;
    job_.tasks = tasks;
    job_.next.store(0, std::memory_order_relaxed);
    helpers_ = helpers;
    state_.store(static_cast<std::uint32_t>(helpers), std::memory_order_release);
  }
  // Works, and returns when all tasks are done.
  void finish() {
    job_.work(0);
    std::uint32_t state = state_.fetch_and(~kSeats, std::memory_order_acquire) & ~kSeats;
    spin_while([&] { return (state = state_.load(std::memory_order_acquire)) != 0; });
    while (state != 0) {
      state_.wait(state, std::memory_order_acquire);
      state = state_.load(std::memory_order_acquire);
    }
    taken_.store(false, std::memory_order_release);
  }

  // Helpers at work, or -1 if no more are wanted.
  int helpers() const {
    const std::uint32_t state = state_.load(std::memory_order_relaxed);
    return (state & kSeats) == 0 ? -1 : static_cast<int>(state / kHelper);
  }
  // By a thread of the pool, which may find that no seat is left.
  void help() {
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    do {
      if ((state & kSeats) == 0) return;
    } while (!state_.compare_exchange_weak(state, state - 1 + kHelper, std::memory_order_acquire));
    job_.work(helpers_ - static_cast<int>(state & kSeats) + 1);
    state_.fetch_and(~kSeats, std::memory_order_relaxed);  // no task is left
    if (state_.fetch_sub(kHelper, std::memory_order_release) == kHelper) state_.notify_all();
  }

 private:
  // Seats that are free in the lower half, helpers at work in the upper one.
  static constexpr std::uint32_t kSeats = 0xFFFF;
  static constexpr std::uint32_t kHelper = kSeats + 1;

  std::atomic<std::uint32_t> state_{0};
  std::atomic<bool> taken_{false};
  int helpers_ = 0;
  Job job_;
};

// The library's threads, shared by all calls that are under way: a thread helps any that has tasks left.
class SharedPool {
 public:
  static constexpr int kMostHelpers = 1 << 15;

  static SharedPool& instance() {
    static SharedPool pool;
    return pool;
  }

  ~SharedPool() {
    stopping_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Returns false, with nothing done, if more calls are under way than there are slots.
  bool run(int helpers, detail::TaskFunction function, void* context, std::int64_t tasks) {
    helpers = std::min(helpers, kMostHelpers);
    if (count_.load(std::memory_order_acquire) < helpers) start_threads(helpers);
    const auto slot = std::find_if(slots_.begin(), slots_.end(), [](Slot& each) { return each.take(); });
    if (slot == slots_.end()) return false;
    slot->open(function, context, tasks, helpers);
    generation_.fetch_add(1, std::memory_order_release);
    if (helpers < count_.load(std::memory_order_relaxed)) {
      for (int i = 0; i < helpers; ++i) generation_.notify_one();
    } else {
      generation_.notify_all();
    }
    slot->finish();
    return true;
  }

 private:
  // Throws with the pool as it was, for the next call, which may ask for fewer.
  void start_threads(int count) {
    const std::lock_guard lock(mutex_);
    try {
      while (static_cast<int>(threads_.size()) < count) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      throw Error("parallel_for", "threads", "fewer threads, or a larger `ulimit -u`",
                  std::to_string(count + 1) + ", of which the system starts " + std::to_string(threads_.size() + 1) +
                      " (" + error.code().message() + ")");
    }
    count_.store(static_cast<int>(threads_.size()), std::memory_order_release);
  }

  // Of the calls that want a helper, the one with the fewest, so that calls share. Null if there is none.
  Slot* find_slot() {
    Slot* found = nullptr;
    int fewest = 0;
    for (Slot& slot : slots_) {
      const int helpers = slot.helpers();
      if (helpers >= 0 && (found == nullptr || helpers < fewest)) {
        found = &slot;
        fewest = helpers;
      }
    }
    return found;
  }

  void work() {
    while (!stopping_.load(std::memory_order_relaxed)) {
      const std::uint32_t idle = generation_.load(std::memory_order_acquire);
      if (Slot* const slot = find_slot()) {
        slot->help();
        continue;
      }
      spin_while([&] { return generation_.load(std::memory_order_relaxed) == idle; });
      generation_.wait(idle, std::memory_order_relaxed);
    }
  }

  std::array<Slot, 32> slots_;
  alignas(64) std::atomic<std::uint32_t> generation_{0};  // of calls that have come, and the end
  std::atomic<bool> stopping_{false};
  std::atomic<int> count_{0};  // of threads_
  std::mutex mutex_;
  std::vector<std::thread> threads_;  // under the mutex
};

void run_on_callers_threads(const ThreadPool& pool, int workers, Job& job) {
  pool.run(
      pool.user, workers, [](void* context, int worker) { static_cast<Job*>(context)->work(worker); }, &job);
}

}  // namespace

int thread_count(const Stream& stream) {
  if (stream.threads > 0) return stream.threads;
  static const int hardware = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return hardware;
}

void detail::parallel_for(const Stream& stream, int threads, std::int64_t tasks, TaskFunction function, void* context) {
  if (threads <= 1 || tasks <= 1 || within_task) {
    for (std::int64_t task = 0; task < tasks; ++task) function(context, task, 0);
    return;
  }
  const int workers = static_cast<int>(std::min<std::int64_t>(threads, tasks));
  if (stream.pool == nullptr && SharedPool::instance().run(workers - 1, function, context, tasks)) return;
  Job job;
  job.function = function;
  job.context = context;
  job.tasks = tasks;
  if (stream.pool != nullptr) {
    run_on_callers_threads(*stream.pool, workers, job);
  } else {
    job.work(0);
  }
}

}  // namespace thalweg
