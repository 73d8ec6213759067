#include "decode/staged_copies.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/threads.h"

namespace thalweg::decode {

// Goes through the segments in order, by as many bytes as a buffer has.
class StagedCopies::Walk {
 public:
  explicit Walk(std::span<const MemorySegment> segments) : segments_(segments) {}

  bool done() const { return next_ == segments_.size(); }

  // copy(address, offset in the buffer, bytes) for each of the next segments, or parts of them; returns their bytes.
  template <class Copy>
  std::size_t fill(std::size_t most, const Copy& copy) {
    std::size_t filled = 0;
    while (!done() && filled < most) {
      const MemorySegment& segment = segments_[next_];
      const std::size_t count = std::min(segment.bytes - within_, most - filled);
      if (count > 0) copy(segment.data + within_, filled, count);
      filled += count;
      within_ += count;
      if (within_ < segment.bytes) continue;
      ++next_;
      within_ = 0;
    }
    return filled;
  }

 private:
  std::span<const MemorySegment> segments_;
  std::size_t next_ = 0;
  std::size_t within_ = 0;  // bytes of that segment
};

StagedCopies::StagedCopies(const Runtime& runtime, std::size_t bytes) : runtime_(runtime), bytes_(bytes) {}

void StagedCopies::allocate() {
  for (std::unique_ptr<Buffer>& buffer : buffers_) {
    if (buffer == nullptr) buffer = std::make_unique<Buffer>(runtime_, bytes_);
  }
}

void StagedCopies::copy_on_host(std::byte* to, const std::byte* from, std::size_t bytes) const {
  constexpr std::size_t kTaskBytes = std::size_t{1} << 20;
  const auto tasks = static_cast<std::int64_t>((bytes + kTaskBytes - 1) / kTaskBytes);
  parallel_for(Stream::cpu(runtime_.stream().threads), tasks, [&](std::int64_t task, int) {
    const std::size_t at = static_cast<std::size_t>(task) * kTaskBytes;
    std::memcpy(to + at, from + at, std::min(kTaskBytes, bytes - at));
  });
}

void StagedCopies::read(std::span<const MemorySegment> segments, std::byte* to) {
  allocate();
  Walk walk(segments);
  std::size_t filled[2] = {};
  const auto enqueue = [&](int i) {
    std::byte* const memory = buffers_[i]->memory.data();
    filled[i] = walk.fill(bytes_, [&](const std::byte* from, std::size_t at, std::size_t count) {
      runtime_.copy(memory + at, from, count);
    });
    buffers_[i]->done.record();
  };
  enqueue(0);
  for (int i = 0; filled[i] > 0; i ^= 1) {
    enqueue(i ^ 1);
    buffers_[i]->done.wait();
    copy_on_host(to, buffers_[i]->memory.data(), filled[i]);
    to += filled[i];
    filled[i] = 0;
  }
}

void StagedCopies::write(std::span<const MemorySegment> segments, const std::byte* from) {
  allocate();
  Walk walk(segments);
  for (int i = 0; !walk.done(); i ^= 1) {
    // The segments are known before the bytes are there, so that they can be copied together.
    std::byte* const memory = buffers_[i]->memory.data();
    buffers_[i]->done.wait();  // for an earlier call's copies too
    Walk ahead = walk;
    const std::size_t count = ahead.fill(bytes_, [](const std::byte*, std::size_t, std::size_t) {});
    copy_on_host(memory, from, count);
    walk.fill(bytes_, [&](std::byte* to, std::size_t at, std::size_t bytes) { runtime_.copy(to, memory + at, bytes); });
    buffers_[i]->done.record();
    from += count;
  }
}

}  // namespace thalweg::decode
