#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "thalweg/device.h"

namespace thalweg {

// Threads that a CPU stream uses: its own number, or every hardware thread.
int thread_count(const Stream& stream);

namespace detail {
using TaskFunction = void (*)(void* context, std::int64_t task, int worker);
void parallel_for(int threads, std::int64_t tasks, TaskFunction function, void* context);
}  // namespace detail

// Calls body(task, worker) once for each task in 0..tasks-1, on up to thread_count(stream) threads of the library's one
// pool; worker (0..thread_count-1) names the thread's scratch memory. Which worker gets a task is not determined, so a
// result must not depend on it. A call from within a task, or while another thread uses the pool, runs on the caller
// alone. body must not throw.
template <class Body>
void parallel_for(const Stream& stream, std::int64_t tasks, Body&& body) {
  auto function = [](void* context, std::int64_t task, int worker) {
    (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
  };
  detail::parallel_for(thread_count(stream), tasks, function,
                       const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace thalweg
