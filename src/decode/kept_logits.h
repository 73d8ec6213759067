#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "decode/runtime.h"
#include "thalweg/device_memory.h"

namespace thalweg::decode {

// The logits after the tokens of each slot, on a model's device, where the host does not need them: whether it ever
// will is not known when a run ends.
class KeptLogits {
 public:
  // Nothing is allocated before allocate().
  KeptLogits(const Runtime& runtime, int slots, std::int64_t vocabulary)
      : runtime_(runtime), slots_(slots), row_bytes_(static_cast<std::size_t>(vocabulary) * sizeof(float)) {}

  std::size_t bytes() const { return static_cast<std::size_t>(slots_) * row_bytes_; }
  void allocate() { memory_ = DeviceMemory(runtime_.device(), bytes()); }

  // In the order of the stream; `row` is on the device.
  void keep(int slot, const void* row) const { runtime_.copy(place(slot), row, row_bytes_); }
  // Waits.
  void read(int slot, std::vector<float>& logits) const {
    logits.resize(row_bytes_ / sizeof(float));
    runtime_.download(logits.data(), place(slot), row_bytes_);
  }

 private:
  std::byte* place(int slot) const {
    return static_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(slot) * row_bytes_;
  }

  const Runtime& runtime_;
  int slots_;
  std::size_t row_bytes_;
  DeviceMemory memory_;
};

}  // namespace thalweg::decode
