// Many copies in a launch: the states of a sequence are dozens of tensors, its keys and values thousands of ranges, and
// a copy that is enqueued by itself takes longer to enqueue than to run.

#include "cuda/memory_copies.h"

#include <algorithm>
#include <cstdint>

#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kBlockBytes = 16384;  // that a block copies
constexpr int kCopies = 160;                // of a launch, whose parameters are at most 4 KB

struct Copies {
  MemoryCopy copies[kCopies];
};

template <class Word>
__device__ void copy_words(const MemoryCopy& copy, std::size_t begin, std::size_t end) {
  const auto* from = static_cast<const Word*>(copy.from);
  auto* to = static_cast<Word*>(copy.to);
  for (std::size_t i = begin / sizeof(Word) + threadIdx.x; i < end / sizeof(Word); i += kThreads) {
    to[i] = from != nullptr ? from[i] : Word{};
  }
}

// grid: (blocks of the largest copy, copies)
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Copies all) {
  const MemoryCopy& copy = all.copies[blockIdx.y];
  const std::size_t begin = blockIdx.x * kBlockBytes;
  if (begin >= copy.bytes) return;
  const std::size_t end = min(begin + kBlockBytes, copy.bytes);
  const auto alignment =
      reinterpret_cast<std::uintptr_t>(copy.to) | reinterpret_cast<std::uintptr_t>(copy.from) | copy.bytes;
  if (alignment % sizeof(uint4) == 0) {
    copy_words<uint4>(copy, begin, end);
  } else if (alignment % sizeof(std::uint32_t) == 0) {
    copy_words<std::uint32_t>(copy, begin, end);
  } else {
    copy_words<std::uint8_t>(copy, begin, end);
  }
}

}  // namespace

void enqueue_copies(const Stream& stream, std::span<const MemoryCopy> copies) {
  const CurrentDevice current(stream, "copy");
  while (!copies.empty()) {
    Copies some;
    const auto count = std::min<std::size_t>(copies.size(), kCopies);
    std::size_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      some.copies[i] = copies[i];
      largest = std::max(largest, copies[i].bytes);
    }
    copies = copies.subspan(count);
    if (largest == 0) continue;
    const dim3 grid(static_cast<unsigned>((largest + kBlockBytes - 1) / kBlockBytes), static_cast<unsigned>(count));
    copy_kernel<<<grid, kThreads, 0, native(stream)>>>(some);
    check(cudaGetLastError(), "copy");
  }
}

}  // namespace thalweg::cu
