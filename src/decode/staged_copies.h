#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "decode/memory_segments.h"
#include "decode/runtime.h"

namespace thalweg::decode {

// Copies between segments of a device's memory and one array of ordinary memory, through two pinned buffers: one is
// copied to or from the device while threads copy the other, which is several times as fast as the driver's own way to
// memory that is not pinned.
class StagedCopies {
 public:
  // `bytes`: of each buffer, which are allocated when first used.
  explicit StagedCopies(const Runtime& runtime, std::size_t bytes = std::size_t{8} << 20);

  // One segment after the other. Returns when `to` has all of them.
  void read(std::span<const MemorySegment> segments, std::byte* to);
  // Returns when `from` has been read; the device has it in the order of the stream.
  void write(std::span<const MemorySegment> segments, const std::byte* from);

 private:
  struct Buffer {
    Buffer(const Runtime& runtime, std::size_t bytes) : memory(runtime, bytes), done(runtime) {}
    PinnedMemory memory;
    Event done;  // the device's copies
  };
  // The next segments that fill a buffer.
  class Walk;

  void allocate();
  void copy_on_host(std::byte* to, const std::byte* from, std::size_t bytes) const;

  const Runtime& runtime_;
  std::size_t bytes_;
  std::unique_ptr<Buffer> buffers_[2];
};

}  // namespace thalweg::decode
