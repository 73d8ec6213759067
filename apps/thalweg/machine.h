#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "thalweg/device.h"

namespace thalweg::app {

// Reads a buffer that is far larger than the caches, with every thread of a stream.
class MemoryReader {
 public:
  explicit MemoryReader(std::int64_t bytes);

  std::int64_t bytes() const;
  void pass(const Stream& stream);

 private:
  struct Free {
    void operator()(float* memory) const;
  };

  std::unique_ptr<float, Free> buffer_;
  std::vector<float> sums_;  // of each block, so that the reads are not optimized away
};

// What the processor reaches with `threads` threads, measured at the call; the floors of bench rows use it.
struct Machine {
  double bytes_per_second = 0.0;  // reads of a buffer far larger than the caches
  double flops_per_second = 0.0;  // f32 multiply-adds on registers, two flops each
};

Machine measure_machine(int threads);

}  // namespace thalweg::app
