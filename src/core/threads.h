#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "thalweg/device.h"

namespace thalweg {

// Threads that a CPU stream uses: stream.threads, or all hardware threads if that is 0.
int thread_count(const Stream& stream);

namespace detail {
using TaskFunction = void (*)(void* context, std::int64_t task, int worker);
// On the caller alone if threads <= 1.
void parallel_for(const Stream& stream, int threads, std::int64_t tasks, TaskFunction function, void* context);

template <class Body>
void task_function(void* context, std::int64_t task, int worker) {
  (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
}
template <class Body>
void* context_of(Body& body) {
  return const_cast<void*>(static_cast<const void*>(std::addressof(body)));
}
}  // namespace detail

// Calls body(task, worker) once for each task in 0..tasks-1, on up to thread_count(stream) threads of the library's one
// pool or of stream.pool. worker (0..thread_count-1) identifies the thread and its scratch memory. Which worker runs a
// task is not determined, and results must not depend on it. The caller runs all tasks by itself if there is only one,
// or if it is itself within a task; callers at once share the pool's threads. body must not throw.
template <class Body>
void parallel_for(const Stream& stream, std::int64_t tasks, Body&& body) {
  detail::parallel_for(stream, thread_count(stream), tasks, detail::task_function<Body>, detail::context_of(body));
}

// Nanoseconds of work that justify one more thread: handing tasks to a spinning thread takes about 1 us, waking a
// sleeping one 5 to 50 us. Tests set it to 0, so that small cases run on several threads.
inline std::atomic<double> min_thread_ns{5e3};

// Number of the stream's threads that `total_ns` nanoseconds of work justify, at least 1.
inline int useful_threads(const Stream& stream, double total_ns) {
  const double wanted = total_ns / min_thread_ns.load(std::memory_order_relaxed) + 0.5;
  const int most = thread_count(stream);
  return wanted < most ? std::max(static_cast<int>(wanted), 1) : most;
}

// The same for tasks of about `task_ns` nanoseconds each, on no more threads than their work justifies.
template <class Body>
void parallel_for(const Stream& stream, std::int64_t tasks, double task_ns, Body&& body) {
  detail::parallel_for(stream, useful_threads(stream, static_cast<double>(tasks) * task_ns), tasks,
                       detail::task_function<Body>, detail::context_of(body));
}

}  // namespace thalweg
