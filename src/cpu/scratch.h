#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads.h"
#include "thalweg/device.h"

namespace thalweg::cpu {

// Scratch floats of one worker thread, handed out in pieces of whole cache lines.
class Scratch {
 public:
  // Floats that `counts` take together.
  template <class... Counts>
  static constexpr std::int64_t floats(Counts... counts) {
    return (std::int64_t{0} + ... + padded(counts));
  }
  // Bytes of a workspace that gives every worker `floats_per_worker` (a result of floats()).
  static std::size_t workspace_bytes(std::int64_t floats_per_worker, const Stream& stream) {
    return static_cast<std::size_t>(floats_per_worker * thread_count(stream)) * sizeof(float);
  }

  Scratch(const Workspace& workspace, std::int64_t floats_per_worker, int worker)
      : next_(static_cast<float*>(workspace.data) + floats_per_worker * worker) {}

  float* take(std::int64_t count) {
    float* piece = next_;
    next_ += padded(count);
    return piece;
  }

 private:
  static constexpr std::int64_t padded(std::int64_t count) { return (count + 15) / 16 * 16; }

  float* next_;
};

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace thalweg::cpu
