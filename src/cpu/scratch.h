#pragma once

// A workspace with the same memory for each worker thread of parallel_for.

#include <cstddef>
#include <cstdint>

#include "core/arena.h"
#include "core/threads.h"

namespace thalweg::cpu {

// Floats that arrays of `counts` floats take together in an arena.
template <class... Counts>
constexpr std::int64_t arena_floats(Counts... counts) {
  return static_cast<std::int64_t>((std::size_t{0} + ... + Arena::bytes_of<float>(counts)) / sizeof(float));
}

// Bytes of a workspace with `floats` for every worker (a result of arena_floats()).
inline std::size_t worker_bytes(std::int64_t floats, const Stream& stream) {
  return static_cast<std::size_t>(floats * thread_count(stream)) * sizeof(float);
}

// The memory of one worker in such a workspace.
inline Arena worker_arena(const Workspace& workspace, std::int64_t floats, int worker) {
  return Arena(Workspace{static_cast<float*>(workspace.data) + floats * worker, 0});
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace thalweg::cpu
