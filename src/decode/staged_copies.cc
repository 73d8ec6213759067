#include "decode/staged_copies.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/threads.h"

namespace thalweg::decode {

// Goes through the pieces in order, by as many bytes as a buffer has.
class StagedCopies::Walk {
 public:
  explicit Walk(std::span<const Piece> pieces) : pieces_(pieces) {}

  bool done() const { return next_ == pieces_.size(); }

  // copy(address, offset in the buffer, bytes) for each of the next pieces, or parts of them; returns their bytes.
  template <class Copy>
  std::size_t fill(std::size_t most, const Copy& copy) {
    std::size_t filled = 0;
    while (!done() && filled < most) {
      const Piece& piece = pieces_[next_];
      const std::size_t count = std::min(piece.bytes - within_, most - filled);
      if (count > 0) copy(piece.data + within_, filled, count);
      filled += count;
      within_ += count;
      if (within_ < piece.bytes) continue;
      ++next_;
      within_ = 0;
    }
    return filled;
  }

 private:
  std::span<const Piece> pieces_;
  std::size_t next_ = 0;
  std::size_t within_ = 0;  // bytes of that piece
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

void StagedCopies::read(std::span<const Piece> pieces, std::byte* to) {
  allocate();
  Walk walk(pieces);
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

void StagedCopies::write(std::span<const Piece> pieces, const std::byte* from) {
  allocate();
  Walk walk(pieces);
  for (int i = 0; !walk.done(); i ^= 1) {
    // The pieces are known before the bytes are there, so that they can be copied together.
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
