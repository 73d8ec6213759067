#include "core/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
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

class ThreadPool {
 public:
  static ThreadPool& instance() {
    static ThreadPool pool;
    return pool;
  }

  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(int threads, std::int64_t tasks, detail::TaskFunction function, void* context) {
    if (threads <= 1 || tasks <= 1 || busy_.test_and_set(std::memory_order_acquire)) {
      for (std::int64_t task = 0; task < tasks; ++task) function(context, task, 0);
      return;
    }
    Job job{function, context, tasks};
    const int helpers = static_cast<int>(std::min<std::int64_t>(threads, tasks)) - 1;
    {
      const std::lock_guard lock(mutex_);
      start_threads(helpers);
      job_ = &job;
      joined_ = 0;
      wanted_ = helpers;
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (helpers < static_cast<int>(threads_.size())) {
      for (int i = 0; i < helpers; ++i) wake_.notify_one();
    } else {
      wake_.notify_all();
    }
    job.work(0);
    {
      std::unique_lock lock(mutex_);
      job_ = nullptr;  // no helper joins from here on
      if (running_.load(std::memory_order_relaxed) != 0) {
        lock.unlock();
        spin_while([this] { return running_.load(std::memory_order_acquire) != 0; });
        lock.lock();
      }
      done_.wait(lock, [this] { return running_.load(std::memory_order_relaxed) == 0; });
    }
    busy_.clear(std::memory_order_release);
  }

 private:
  // Under the mutex. Throws with the pool free for the next call, which may ask for fewer.
  void start_threads(int count) {
    try {
      while (static_cast<int>(threads_.size()) < count) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      busy_.clear(std::memory_order_release);
      throw Error("parallel_for", "threads", "fewer threads, or a larger `ulimit -u`",
                  std::to_string(count + 1) + ", of which the system starts " + std::to_string(threads_.size() + 1) +
                      " (" + error.code().message() + ")");
    }
  }

  struct Job {
    detail::TaskFunction function;
    void* context;
    std::int64_t tasks;
    std::atomic<std::int64_t> next{0};

    void work(int worker) {
      for (std::int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < tasks;
           task = next.fetch_add(1, std::memory_order_relaxed)) {
        function(context, task, worker);
      }
    }
  };

  void work() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (job_ != nullptr && joined_ < wanted_ && generation_.load(std::memory_order_relaxed) != seen) {
        seen = generation_.load(std::memory_order_relaxed);
        Job* job = job_;
        const int worker = ++joined_;
        running_.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        job->work(worker);
        lock.lock();
        if (running_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
        continue;
      }
      const std::uint64_t idle = generation_.load(std::memory_order_relaxed);
      lock.unlock();
      spin_while([&] { return generation_.load(std::memory_order_acquire) == idle; });
      lock.lock();
      wake_.wait(lock, [&] { return stopping_ || generation_.load(std::memory_order_relaxed) != idle; });
    }
  }

  std::atomic_flag busy_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<std::uint64_t> generation_{0};
  Job* job_ = nullptr;
  int joined_ = 0;
  int wanted_ = 0;
  std::atomic<int> running_{0};  // changes under the mutex
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

int thread_count(const Stream& stream) {
  if (stream.threads > 0) return stream.threads;
  static const int hardware = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return hardware;
}

void detail::parallel_for(int threads, std::int64_t tasks, TaskFunction function, void* context) {
  ThreadPool::instance().run(threads, tasks, function, context);
}

}  // namespace thalweg
