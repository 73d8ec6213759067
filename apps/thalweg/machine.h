#pragma once

namespace thalweg::app {

// What the processor reaches with `threads` threads, measured now: floors of bench rows rest on it.
struct Machine {
  double bytes_per_second = 0.0;  // reads of a buffer far larger than the caches
  double flops_per_second = 0.0;  // f32 multiply-adds on registers, two flops each
};

Machine measure_machine(int threads);

}  // namespace thalweg::app
