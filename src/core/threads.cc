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

// Tasks of one call, which the threads that run it claim one by one.
struct Job {
  detail::TaskFunction function;
  void* context;
  std::int64_t tasks;
  std::atomic<std::int64_t> next{0};
  // Of the library's pool, under its mutex.
  int wanted = 0;   // helpers
  int joined = 0;   // so far
  int running = 0;  // of them
  Job* other = nullptr;

  bool has_tasks() const { return next.load(std::memory_order_relaxed) < tasks; }
  void work(int worker);
};

// Whether this thread is within a task: what that starts runs on this thread alone.
thread_local bool within_task = false;

void Job::work(int worker) {
  within_task = true;
  for (std::int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < tasks;
       task = next.fetch_add(1, std::memory_order_relaxed)) {
    function(context, task, worker);
  }
  within_task = false;
}

// The library's threads, shared by all calls that are under way: a thread helps any that has tasks left.
class SharedPool {
 public:
  static SharedPool& instance() {
    static SharedPool pool;
    return pool;
  }

  ~SharedPool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(int helpers, Job& job) {
    job.wanted = helpers;
    std::size_t threads = 0;
    {
      const std::lock_guard lock(mutex_);
      start_threads(helpers);
      threads = threads_.size();
      job.other = jobs_;
      jobs_ = &job;
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (helpers < static_cast<int>(threads)) {
      for (int i = 0; i < helpers; ++i) wake_.notify_one();
    } else {
      wake_.notify_all();
    }
    job.work(0);
    std::unique_lock lock(mutex_);
    remove(job);  // no helper joins from here on
    if (job.running != 0) {
      const std::uint64_t seen = finished_.load(std::memory_order_relaxed);
      lock.unlock();
      spin_while([&] { return finished_.load(std::memory_order_acquire) == seen; });
      lock.lock();
    }
    done_.wait(lock, [&] { return job.running == 0; });
  }

 private:
  // Under the mutex. Throws with the pool as it was, for the next call, which may ask for fewer.
  void start_threads(int count) {
    try {
      while (static_cast<int>(threads_.size()) < count) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      throw Error("parallel_for", "threads", "fewer threads, or a larger `ulimit -u`",
                  std::to_string(count + 1) + ", of which the system starts " + std::to_string(threads_.size() + 1) +
                      " (" + error.code().message() + ")");
    }
  }

  // Under the mutex.
  void remove(const Job& job) {
    Job** place = &jobs_;
    while (*place != &job) place = &(*place)->other;
    *place = job.other;
  }
  // Under the mutex: of the jobs that want a helper, the one with the fewest, so that calls share.
  Job* find_job() {
    Job* found = nullptr;
    for (Job* job = jobs_; job != nullptr; job = job->other) {
      if (job->joined < job->wanted && job->has_tasks() && (found == nullptr || job->running < found->running)) {
        found = job;
      }
    }
    return found;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (Job* const job = find_job()) {
        const int worker = ++job->joined;
        ++job->running;
        lock.unlock();
        job->work(worker);
        lock.lock();
        if (--job->running == 0) {
          finished_.fetch_add(1, std::memory_order_release);
          done_.notify_all();
        }
        continue;
      }
      const std::uint64_t idle = generation_.load(std::memory_order_relaxed);
      lock.unlock();
      spin_while([&] { return generation_.load(std::memory_order_acquire) == idle; });
      lock.lock();
      wake_.wait(lock, [&] { return stopping_ || generation_.load(std::memory_order_relaxed) != idle; });
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<std::uint64_t> generation_{0};  // of jobs that have come, and the end
  std::atomic<std::uint64_t> finished_{0};    // times that a job's last helper has left it
  Job* jobs_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
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
  Job job{function, context, tasks};
  const int workers = static_cast<int>(std::min<std::int64_t>(threads, tasks));
  if (stream.pool != nullptr) {
    run_on_callers_threads(*stream.pool, workers, job);
  } else {
    SharedPool::instance().run(workers - 1, job);
  }
}

}  // namespace thalweg
