// Many copies in a launch: the states of a sequence are dozens of pieces, its keys and values thousands, and a copy
// that is enqueued by itself takes longer to enqueue than to run.

#include "cuda/copy_pieces.h"

#include <algorithm>
#include <cstdint>

#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kBlockBytes = 16384;  // that a block copies
constexpr int kPieces = 160;                // of a launch, whose parameters are at most 4 KB

struct Pieces {
  MemoryCopy pieces[kPieces];
};

template <class Word>
__device__ void copy_words(const MemoryCopy& piece, std::size_t begin, std::size_t end) {
  const auto* from = static_cast<const Word*>(piece.from);
  auto* to = static_cast<Word*>(piece.to);
  for (std::size_t i = begin / sizeof(Word) + threadIdx.x; i < end / sizeof(Word); i += kThreads) {
    to[i] = from != nullptr ? from[i] : Word{};
  }
}

// grid: (parts of the largest piece, pieces)
__global__ void __launch_bounds__(kThreads) copy_pieces_kernel(const __grid_constant__ Pieces all) {
  const MemoryCopy& piece = all.pieces[blockIdx.y];
  const std::size_t begin = blockIdx.x * kBlockBytes;
  if (begin >= piece.bytes) return;
  const std::size_t end = min(begin + kBlockBytes, piece.bytes);
  const auto alignment =
      reinterpret_cast<std::uintptr_t>(piece.to) | reinterpret_cast<std::uintptr_t>(piece.from) | piece.bytes;
  if (alignment % sizeof(uint4) == 0) {
    copy_words<uint4>(piece, begin, end);
  } else if (alignment % sizeof(std::uint32_t) == 0) {
    copy_words<std::uint32_t>(piece, begin, end);
  } else {
    copy_words<std::uint8_t>(piece, begin, end);
  }
}

}  // namespace

void enqueue_copies(const Stream& stream, std::span<const MemoryCopy> copies) {
  const CurrentDevice current(stream, "copy");
  while (!copies.empty()) {
    Pieces some;
    const auto count = std::min<std::size_t>(copies.size(), kPieces);
    std::size_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      some.pieces[i] = copies[i];
      largest = std::max(largest, copies[i].bytes);
    }
    copies = copies.subspan(count);
    if (largest == 0) continue;
    const dim3 grid(static_cast<unsigned>((largest + kBlockBytes - 1) / kBlockBytes), static_cast<unsigned>(count));
    copy_pieces_kernel<<<grid, kThreads, 0, native(stream)>>>(some);
    check(cudaGetLastError(), "copy");
  }
}

}  // namespace thalweg::cu
